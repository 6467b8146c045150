"""The namespace `flow.nn.utils.rnn`: padded and packed batches of sequences."""

from jobflow.functional.dispatch import all_of, of_tensors
from jobflow.functional.packed_sequences import PackedSequence as PackedSequence
from jobflow.functional.packed_sequences import invert_permutation as invert_permutation
from jobflow.functional.packed_sequences import pack_padded_sequence as pack_padded_sequence
from jobflow.functional.packed_sequences import pack_sequence as pack_sequence
from jobflow.functional.packed_sequences import pad_packed_sequence as pad_packed_sequence
from jobflow.functional.packed_sequences import pad_sequence as pad_sequence
from jobflow.functional.packed_sequences import unpack_sequence as unpack_sequence
from jobflow.functional.packed_sequences import unpad_sequence as unpad_sequence

globals().update(all_of(__name__, globals(), "jobflow.functional.packed_sequences", of_tensors))
