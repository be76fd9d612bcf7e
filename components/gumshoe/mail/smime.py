"""Open opaque S/MIME messages (RFC 8551): the content of a signed message, without checking its signature."""

import zlib

_MAX_UNPACKED = 5 << 20  # bytes of a compressed message


class EncryptedMessageError(ValueError):
    """The message is encrypted."""


def open_smime(data: bytes) -> bytes:
    """Return the MIME entity in the CMS data of an smime.p7m.

    Raises:
        EncryptedMessageError: if it is encrypted.
        ValueError: if it has no content, or is damaged.
        ImportError: if asn1crypto is not installed.
    """
    from asn1crypto.cms import ContentInfo

    try:
        info = ContentInfo.load(data)
        kind = info["content_type"].native
        if kind == "signed_data":
            content = bytes(info["content"]["encap_content_info"]["content"])
        elif kind == "compressed_data":
            packed = bytes(info["content"]["encap_content_info"]["content"])
            content = zlib.decompressobj().decompress(packed, _MAX_UNPACKED)
        elif kind in {"enveloped_data", "encrypted_data", "authenticated_data", "authenticated_enveloped_data"}:
            raise EncryptedMessageError("the message is encrypted")
        else:
            raise ValueError(f"unexpected content: {kind}")
    except (TypeError, KeyError, AttributeError, RecursionError, zlib.error) as error:
        raise ValueError(f"damaged ({error})") from error
    if not content:
        raise ValueError("no content")
    return content
