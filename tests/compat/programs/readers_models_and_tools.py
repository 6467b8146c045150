"""Programs in the documented style of names that few use: readers of COCO and Megatron files, models, what is exported and served, one's own operations.

Each runs on as many devices as the program is told, and prints its name when it has what it expects.
"""

import json
import os
import struct
import sys
import tempfile
from typing import Tuple

import numpy as np
import oneflow as flow
import oneflow.core.record.record_pb2 as ofrecord
import oneflow.typing as tp
from PIL import Image

DEVICES = int(sys.argv[1])
PROGRAMS = []


def program(function):
    PROGRAMS.append(function)
    return function


def sgd(rate=0.1):
    return flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [rate]), momentum=0)


@program
def coco(folder):
    """As detection programs read: decoded, resized, flipped, normalized, aligned; boxes and masks go along."""
    images, annotations = [], []
    for i in range(4):
        Image.fromarray(np.full((20 + 4 * i, 40, 3), 10 * i, np.uint8)).save(os.path.join(folder, f"{i}.png"))
        images.append({"id": 7 + i, "file_name": f"{i}.png", "height": 20 + 4 * i, "width": 40})
        corners = [4, 4, 12, 4, 12, 12, 4, 12]
        annotations.append({"id": i, "image_id": 7 + i, "category_id": 3, "bbox": [4, 4, 8, 8], "segmentation": [corners], "area": 64, "iscrowd": 0})
    path = os.path.join(folder, "annotations.json")
    with open(path, "w") as file:
        json.dump({"images": images, "annotations": annotations, "categories": [{"id": 3, "name": "thing"}]}, file)

    @flow.global_function(function_config=flow.function_config())
    def job() -> Tuple[tp.Numpy, tp.Numpy, tp.ListNumpy, tp.Numpy]:
        with flow.scope.placement("cpu", "0:0"):
            image, image_id, size, boxes, label, polygons, index = flow.data.coco_reader(
                annotation_file=path, image_dir=folder, batch_size=4, shuffle=False, group_by_aspect_ratio=False, name="COCOReader"
            )
            image = flow.image.decode(image, dtype=flow.float)
            image, new_size, scale = flow.image.target_resize(image, target_size=10, max_size=20)
            boxes = flow.detection.object_bbox_scale(boxes, scale)
            polygons = flow.detection.object_segmentation_polygon_scale(polygons, scale)
            image = flow.image.normalize(image, (2.0, 2.0, 2.0), (10.0, 10.0, 10.0))
            flips = flow.constant(1, dtype=flow.int8, shape=(4,))
            image, boxes = flow.image.flip(image, flips), flow.detection.object_bbox_flip(boxes, new_size, flips)
            polygons = flow.detection.object_segmentation_polygon_flip(polygons, new_size, flips)
            masks = flow.detection.object_segmentation_polygon_to_mask(polygons, index, new_size)
            masks = flow.tensor_buffer_to_list_of_tensors(masks, (1, 20, 20), flow.int8, True)
            images = flow.image.batch_align(image, shape=(20, 20, 3), dtype=flow.float, alignment=16)
            boxes = flow.tensor_buffer_to_tensor(boxes, flow.float, (1, 4))
            return images, boxes, masks[0], image_id

    images, boxes, mask, ids = job()
    assert images.shape == (4, 16, 32, 3) and images[1, 0, 0].tolist() == [0, 0, 0] and images[3, 0, 0].tolist() == [10, 10, 10]
    assert ids.tolist() == [7, 8, 9, 10] and boxes[0, 0].tolist() == [13.5, 2, 17, 5.5]
    assert mask[0].shape == (1, 10, 20) and mask[0].sum() == 16 and not mask[0][0, :, :12].any()


@program
def tokens(folder):
    """As GPT is fed, with the batch in parts, and going on from what was saved."""
    documents = [np.arange(k, k + 20 + k).astype(np.uint16) for k in range(10)]
    lengths = [len(each) for each in documents]
    with open(os.path.join(folder, "text.bin"), "wb") as file:
        file.write(b"".join(each.tobytes() for each in documents))
    with open(os.path.join(folder, "text.idx"), "wb") as file:
        file.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, len(lengths), len(lengths) + 1) + np.array(lengths, np.int32).tobytes())
        file.write((2 * (np.cumsum(lengths) - lengths)).astype(np.int64).tobytes() + np.arange(len(lengths) + 1).tobytes())

    def declared():
        flow.clear_default_session()
        flow.config.gpu_device_num(DEVICES)
        config = flow.function_config()
        config.train.num_gradient_accumulation_steps(2)

        @flow.global_function("train", config)
        def job() -> Tuple[tp.Numpy, tp.Numpy]:
            read = flow.data.megatron_gpt_mmap_data_loader(
                data_file_prefix=os.path.join(folder, "text"),
                seq_length=6,
                num_samples=40,
                batch_size=4,
                dtype=flow.int64,
                shuffle=True,
                random_seed=12345,
                split_sizes=[8, 1, 1],
                split_index=0,
                parallel_distribution=["S(0)"],
                start_from_saved_progress=True,
                name="gpt_loader",
            )
            table = flow.get_variable("embedding", (64, 8), initializer=flow.random_normal_initializer(stddev=0.1))
            hidden = flow.gather(table, flow.slice(read, begin=(None, 0), size=(None, 6)))
            labels = flow.reshape(flow.slice(read, begin=(None, 1), size=(None, 6)), (-1,))
            logits = flow.reshape(flow.matmul(hidden, table, transpose_b=True), (-1, 64))
            loss = flow.math.reduce_mean(flow.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
            sgd(1.0).minimize(loss)
            return loss, read

        return job

    job, path = declared(), os.path.join(folder, "snapshot")
    seen = [job() for _ in range(2)]
    flow.checkpoint.save(path)
    following = job()
    job = declared()
    flow.load_variables(flow.checkpoint.get(path))
    again = job()
    assert seen[0][0].shape == (2,) and seen[0][1].shape == (8, 7) and not np.array_equal(seen[0][1], following[1])
    assert np.array_equal(again[1], following[1]) and np.allclose(again[0], following[0], rtol=1e-6)


@program
def models(folder):
    """A model with readers, validation, checkpoints and a callback."""
    with open(os.path.join(folder, "part-00000"), "wb") as file:
        for i in range(12):
            feature = {"x": ofrecord.Feature(float_list=ofrecord.FloatList(value=np.eye(4)[i % 4])), "y": ofrecord.Feature()}
            feature["y"].int32_list.value.append(i % 4)
            example = ofrecord.OFRecord(feature=feature)
            file.write(struct.pack("q", example.ByteSize()) + example.SerializeToString())

    class Records(flow.model.DataModule):
        def forward(self, *args):
            record = flow.data.ofrecord_reader(folder, batch_size=4, data_part_num=1, part_name_suffix_length=5)
            x = flow.data.OFRecordRawDecoder(record, "x", shape=(4,), dtype=flow.float)
            return x, flow.data.OFRecordRawDecoder(record, "y", shape=(), dtype=flow.int32)

    class Arrays(flow.model.NumpyDataModule):
        def forward(self, step_idx, optimizer_idx):
            return np.eye(4, dtype=np.float32), np.arange(4).astype(np.int32)

    class Net(flow.model.Model):
        def forward(self, x):
            return flow.layers.dense(x, 4, name="fc")

        def training_step(self, batch, optimizer_idx):
            assert optimizer_idx == 0
            return flow.nn.sparse_softmax_cross_entropy_with_logits(batch[1], self(batch[0]))

        def validation_step(self, batch):
            return flow.math.argmax(self(batch[0])), batch[1]

        def configure_optimizers(self):
            return sgd(4.0)

    class Monitor(flow.model.Callback):
        losses, right = [], []

        def on_training_step_end(self, outputs, step_idx, optimizer_idx):
            self.losses.append(outputs.mean())

        def on_validation_step_end(self, outputs, step_idx):
            self.right.append((outputs[0].numpy() == outputs[1].numpy()).mean())

    training, validation, saves = flow.model.TrainingConfig(), flow.model.ValidationConfig(), flow.model.CheckpointConfig()
    training.config_execution(flow.ExecutionConfig())
    training.config_data(Records())
    validation.config_execution(flow.ExecutionConfig())
    validation.config_data(Arrays())
    validation.config_step_interval(2)
    saves.config_save(os.path.join(folder, "snapshot"), 4)
    Net().fit(training, validation, saves, [Monitor()], max_steps=4)
    assert abs(Monitor.losses[0] - np.log(4)) < 1e-5 and Monitor.losses[-1] < 0.5 and Monitor.right == [1, 1]
    assert os.path.exists(os.path.join(folder, "snapshot-3", "fc-weight", "out"))


@program
def saved_and_served(folder):
    @flow.global_function(type="predict")
    def predict(image: tp.Numpy.Placeholder((4, 3))) -> tp.Numpy:
        scores = flow.layers.dense(image, 2, flow.math.tanh, kernel_initializer=flow.random_normal_initializer(), name="fc")
        names.update(image=image.logical_blob_name, scores=scores.logical_blob_name)
        return scores

    names, x = {}, np.arange(12, dtype=np.float32).reshape(4, 3) / 10
    expected = predict(x)
    builder = flow.saved_model.ModelBuilder(os.path.join(folder, "models")).ModelName("net").Version(1)
    builder.AddFunction(predict).AddSignature("scores").Input("image", names["image"]).Output("scores", names["scores"]).Complete().Complete().Save()
    flow.clear_default_session()
    option = flow.serving.SessionOption()
    option.device_tag, option.device_num = "cpu", DEVICES
    with flow.serving.InferenceSession(option) as session:
        session.load_saved_model(os.path.join(folder, "models"), flow.serving.ModelVersionPolicy.LATEST)
        session.launch()
        (name,) = session.list_jobs()
        found = session.run(name, image=x)
    assert np.allclose(found["scores"] if isinstance(found, dict) else found[0], expected, rtol=1e-6)


@program
def exported(folder):
    @flow.global_function()
    def infer(x: tp.Numpy.Placeholder((2, 3, 8, 8))) -> tp.Numpy:
        y = flow.layers.conv2d(x, 4, 3, padding="SAME", activation=flow.nn.relu, name="conv")
        y = flow.nn.max_pool2d(flow.layers.batch_normalization(y, axis=1, training=False), 2, 2, "VALID")
        return flow.nn.softmax(flow.layers.dense(flow.reshape(y, (2, -1)), 5, kernel_initializer=flow.random_normal_initializer(), name="fc"))

    snapshot, path = os.path.join(folder, "snapshot"), os.path.join(folder, "net.onnx")
    flow.train.CheckPoint().save(snapshot)
    flow.onnx.export(infer, snapshot, path, opset=11)
    assert os.path.getsize(path) > 4 * 64 * 5


@program
def operations_of_a_folder(folder):
    """A plugin of Python kernels, as v0.3 has it: sigmoid, with its gradient."""
    plugin = os.path.join(folder, "user_sigmoid")
    os.makedirs(plugin)
    call = 'flow.user_op_builder("sigmoid").Op("user_sigmoid_forward").Input("x", [x]).Output("y").Build().InferAndTryRun().SoleOutputBlob()'
    with open(os.path.join(plugin, "user_sigmoid_py_api.py"), "w") as file:
        file.write(f"import oneflow as flow\n\n\ndef user_sigmoid_forward(x):\n    return {call}\n")
    with open(os.path.join(plugin, "user_sigmoid_py_kernel.py"), "w") as file:
        file.write("import numpy as np\n\n\ndef forward(args):\n    return 1 / (1 + np.exp(-args[0]))\n\n\n")
        file.write("def backward(args):\n    y, dy = args\n    return y * (1 - y) * dy\n")
    operations = flow.experimental.custom_op_module("user_sigmoid", folder)
    operations.py_api().cpp_def().py_kernel().build_load()

    @flow.global_function(type="train")
    def job(x: tp.Numpy.Placeholder((4, 3))) -> tp.Numpy:
        with flow.scope.placement("cpu", "0:0"):
            w = flow.get_variable("w", (4, 3), initializer=flow.ones_initializer())
            y = operations.api.user_sigmoid_forward(x * w)
            sgd(1.0).minimize(y)
        return y

    x = np.linspace(-2, 2, 12).reshape(4, 3).astype(np.float32)
    y = job(x)
    assert np.allclose(y, 1 / (1 + np.exp(-x)), rtol=1e-5)
    assert np.allclose(flow.get_all_variables()["w"].numpy(), 1 - x * y * (1 - y) / 12, rtol=1e-5)


@program
def operations_at_once(folder):
    x = flow.tensor(np.float32([[1, -2], [3, 4]]))
    product = flow.builtin_op("matmul").Input("a").Input("b").Output("out").Attr("transpose_a", False).Attr("transpose_b", True).Attr("alpha", 1.0)
    assert product.Build()(x, x)[0].numpy().tolist() == [[5, -5], [-5, 25]]
    assert flow.builtin_op("add_n").Input("in", 2).Output("out").Build()(x, x)[0].numpy().tolist() == [[2, -4], [6, 8]]


for each in PROGRAMS:
    flow.clear_default_session()
    flow.config.gpu_device_num(DEVICES)
    with tempfile.TemporaryDirectory() as directory:
        each(directory)
    print(each.__name__)
