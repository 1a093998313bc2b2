"""The architectures, one per file; the file's name is the name of the model in spec files."""

from gradveil.models.zoo.alexnet import AlexNet
from gradveil.models.zoo.convnet import ConvNet
from gradveil.models.zoo.densenet121 import DenseNet121
from gradveil.models.zoo.lenet import LeNet
from gradveil.models.zoo.mlp import MLP
from gradveil.models.zoo.resnet18 import ResNet18
from gradveil.models.zoo.resnet20_4 import ResNet20x4
from gradveil.models.zoo.resnet34 import ResNet34
from gradveil.models.zoo.vgg16 import VGG16

__all__ = ["MLP", "VGG16", "AlexNet", "ConvNet", "DenseNet121", "LeNet", "ResNet18", "ResNet20x4", "ResNet34"]
