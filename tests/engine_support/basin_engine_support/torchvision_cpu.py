"""The published torchvision is built for CUDA: on CPU torch it fails to import unless its operators have a schema."""

import torch

_LIBRARY = torch.library.Library("torchvision", "FRAGMENT")
_LIBRARY.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
_LIBRARY.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
