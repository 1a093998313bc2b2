"""The second stages: from encodings, true or recovered from gradients, to private images; one file each."""

from gradveil.attacks._decoders.decode_loda import DecodeLoda
from gradveil.attacks._decoders.decode_mixing import DecodeMixing
from gradveil.attacks._decoders.decode_oracle import DecodeOracle
from gradveil.attacks._decoding import Decoder, Decoding, Encodings
from gradveil.registry import Registry

decoders: Registry[Decoder] = Registry("decoder", "gradveil.attacks._decoders", Decoder)  # type: ignore[type-abstract]

__all__ = ["DecodeLoda", "DecodeMixing", "DecodeOracle", "Decoder", "Decoding", "Encodings", "decoders"]
