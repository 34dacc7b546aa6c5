"""Makes `import torchvision`, which timm needs, work beside a CPU build of torch.

PyPI's torchvision is built for a CUDA torch: beside a CPU one its C++ operators can't be loaded,
and the import stops because one of them isn't even declared. Nothing here calls them, so declaring
them is enough. Import this before timm; where torchvision works by itself it does nothing.
"""

import torch

DECLARED = None

try:
    import torchvision
except RuntimeError as err:
    if "torchvision::" not in str(err):
        raise
    DECLARED = torch.library.Library("torchvision", "DEF")  # kept: it vanishes with this object
    for name in ("nms", "qnms"):
        DECLARED.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import torchvision  # noqa: F401
