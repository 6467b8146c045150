"""A program that tests itself with `oneflow.unittest`."""

import unittest

import numpy as np
import oneflow as flow
import oneflow.typing as oft


@flow.unittest.skip_unless_1n1d()
class TestRelu(flow.unittest.TestCase):
    def test_relu(test_case):
        @flow.global_function()
        def job(x: oft.Numpy.Placeholder((4,))) -> oft.Numpy:
            return flow.nn.relu(x)

        test_case.assertEqual(job(np.array([-1, 0, 1, 2], np.float)).tolist(), [0, 0, 1, 2])

    def test_the_name_may_be_used_again(test_case):
        test_case.test_relu()


@flow.unittest.skip_unless_1n2d()
class TestOnTwo(flow.unittest.TestCase):
    def test_never(test_case):
        raise AssertionError("there is one device")


if __name__ == "__main__":
    unittest.main()
