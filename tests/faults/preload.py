"""All that a run imports on its way, so that a process forked after this starts at once."""

# ruff: noqa: F401
import matplotlib.backends.backend_agg
import matplotlib.figure
import tensorboard.compat.proto.event_pb2
import tensorboard.compat.tensorflow_stub.pywrap_tensorflow
import tensorboard.summary.writer.record_writer
import torch._dynamo
import torch.utils.tensorboard.summary

import fpmgm.recipes
import fpmgm.training.loop
