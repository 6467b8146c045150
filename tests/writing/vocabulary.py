"""Words that may not become new names, and the term of the field for each."""

from __future__ import annotations

#: the name of a value is a noun
PARTICIPLES = "a noun for the value: result, graph, layout, arguments, request, target"
#: word -> its replacement; a name may not contain the word, or the words joined by "_" one after another
PARTS = dict.fromkeys(("found", "given", "made", "told", "wanted", "kept", "taken", "seen", "laid"), PARTICIPLES) | {
    "said": "reported, configured or passed",
    "asked": "target, request or options",
    "face": "dispatch, API or signature",
    "faces": "dispatch, API or signatures",
    "crossing": "redistribute, to_global or to_local",
    "relaid": "redistributed",
    "unsummed": "gradient_layout",
    "in_jobs": "tracing",
    "spelled": "alias",
    "lying": "symbolic_strides or layouts",
    "view_strides": "symbolic_strides",
    "far_home": "remote storage",
    "come_back": "fetch",
    "make_beside": "break_hazards",
    "read_again": "break_hazards",
    "overwritten": "buffer reuse or in_place",
    "computed_again": "rematerialized",
    "hint_errors": "constraint or spec",
    "wish": "constraint or spec",
    "wishes": "constraints or specs",
    "in_pieces": "decomposition",
    "refusal": "runtime assertion, or reason",
    "refusals": "runtime assertions, or reasons",
    "skipped_steps": "guarded_update",
    "in_turn": "sequential",
    "sized": "dynamic_shape",
    "ragged": "dynamic_shape",
    "fitting": "specialize",
    "on_host": "host_stage",
    "host_result": "host_output",
    "beside": "concurrent",
    "mailbox": "message_queue",
    "strangers": "unauthenticated peers",
    "distrust": "unauthenticated peers",
    "parting": "shutdown",
    "watcher": "callback or monitor",
    "watching": "monitoring",
    "valid_range": "bounds",
    "columns_as_rows": "transposed_reduction",
    "trail": "collective_log",
}
#: name -> its replacement; only as a whole name, because it is an ordinary part of others
WHOLE = {
    "home": "storage or resident",
    "Home": "Storage",
    "leave": "evict",
    "tie": "binding",
    "Tie": "Binding",
    "origin": "provenance",
    "recording": "tracing",
    "Before": "Phase",
    "further": "extra_arguments",
    "look": "broadcast_view",
    "moves": "point_to_point_plan or transfers",
    "place": "index, offset or placement",
    "apart": "fusion_refusal",
    "Item": "Value",
    "Step": "Instruction",
    "smaller": "decomposition",
    "checked": "runtime_assertion",
    "letter": "message",
    "Letter": "Message",
    "post": "message_queue",
    "Post": "MessageQueue",
    "ways": "wait_graph_edges",
    "drawing": "sampling",
    "limits": "bounds",
    "positions": "index_operands",
    "numbers": "values, elements or data",
}
#: a docstring starts with a verb or a noun, not with one of these
FIRST_WORDS = {"what", "whether", "that", "those", "it", "each", "how", "where"}
#: words in a sentence of a docstring
LONGEST_SENTENCE = 25
