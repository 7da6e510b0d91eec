"""Which files an import refuses, and how it opens the others."""

from __future__ import annotations

import io
import json
import stat
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from recall.errors import SourceError, UsageError
from recall_ingester.exports import Limits, open_export
from recall_ingester.exports.archive import check_archive, open_archive

CLAUDE = json.dumps([{"uuid": "c1", "name": "One", "chat_messages": []}]).encode()
CHATGPT = json.dumps([{"id": "g1", "title": "One", "mapping": {}}]).encode()
Members = dict[str, bytes]


def packed(members: Members, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(name), data, method)
    return target.getvalue()


@pytest.fixture
def made(tmp_path: Path) -> Callable[..., Path]:
    def make(content: Members | bytes, name: str = "export.zip") -> Path:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else packed(content))
        return path

    return make


Made = Callable[..., Path]


def refused(path: Path, words: str, limits: Limits | None = None) -> str:
    """Both doors refuse the file with these words; the hint."""
    with pytest.raises(SourceError, match=words) as caught:
        check_archive(path, limits=limits)
    with pytest.raises(SourceError, match=words):
        open_export([path], limits=limits)
    assert caught.value.hint
    return caught.value.hint


def patched(data: bytes, signature: bytes, at: int, value: bytes) -> bytes:
    start = data.index(signature) + at
    return data[:start] + value + data[start + len(value) :]


def test_good_zip_is_read_in_place(made: Made, tmp_path: Path) -> None:
    path = made({"folder/": b"", "folder/conversations.json": CLAUDE, "folder/a.png": b"\x89"})
    assert check_archive(path) == len(CLAUDE)
    export = open_export([path])
    assert export.names == ["folder/conversations.json"]
    assert [found.data for found in export.conversations()] == [CLAUDE[1:-1]]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "name",
    [
        "/etc/passwd",
        "../up.json",
        "a/../../up.json",
        "a\\..\\up.json",
        "C:\\x.json",
        "\\\\s\\x",
        "c:x",
    ],
)
def test_name_that_leads_out_is_refused_in_any_member(made: Made, name: str) -> None:
    path = made({"conversations.json": CLAUDE, name: b"x"})
    assert "conversations.json" in refused(path, "leads out of the archive")


def test_name_with_a_null_byte_is_refused(made: Made) -> None:
    data = packed({"conversations.json": CLAUDE, "photo.pngX": b"x"})
    refused(made(data.replace(b"photo.pngX", b"photo.png\x00")), "leads out of the archive")


def test_backslashes_part_names(made: Made) -> None:
    path = made({"data\\conversations.json": CHATGPT, ".\\x\\file-1.png": b"x"})
    with open_archive(path) as archive:
        assert archive.names == ["data/conversations.json", "x/file-1.png"]
    assert [found.external_id for found in open_export([path]).conversations()] == ["g1"]


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR])
def test_link_or_device_is_refused_in_any_member(made: Made, kind: int) -> None:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        archive.writestr("conversations.json", CLAUDE)
        link = zipfile.ZipInfo("photo.png")
        link.external_attr = (kind | 0o777) << 16
        archive.writestr(link, "/etc/passwd")
    refused(made(target.getvalue()), "`photo.png` is a link or a special file")


def test_encrypted_member_is_refused(made: Made) -> None:
    data = patched(packed({"conversations.json": CLAUDE}), b"PK\x01\x02", 8, b"\x01\x00")
    assert "password" in refused(made(data), "encrypted")


def test_two_members_of_one_name_are_refused(made: Made) -> None:
    data = packed({"conversations.json": CLAUDE, "conversations.jsox": CHATGPT})
    path = made(data.replace(b"conversations.jsox", b"conversations.json"))
    refused(path, "2 members named `conversations.json`")


def test_two_pictures_of_one_name_are_nobodys_concern(made: Made) -> None:
    data = packed({"conversations.json": CLAUDE, "a.png": b"x", "a.pnx": b"y"})
    assert check_archive(made(data.replace(b"a.pnx", b"a.png"))) == len(CLAUDE)


def test_damaged_bytes_are_refused_before_anything_is_read(made: Made) -> None:
    data = packed({"conversations.json": CLAUDE}, zipfile.ZIP_STORED)
    path = made(data.replace(b'"One"', b'"Two"'))
    assert "download" in refused(path, "does not match its checksum")


@pytest.mark.parametrize("keep", [0, 1, 30, 60, -1, -22])
def test_zip_that_is_cut_off_is_refused(made: Made, keep: int) -> None:
    data = packed({"conversations.json": CLAUDE})
    assert "download" in refused(made(data[:keep]), "is not a zip, or was cut off")


def test_deflated_bytes_that_are_damaged_are_refused(made: Made) -> None:
    data = packed({"conversations.json": CLAUDE * 50})
    at = 30 + len("conversations.json")
    refused(made(data[:at] + b"\xff" * 8 + data[at + 8 :]), "damaged|checksum")


@pytest.mark.parametrize("declared", [10, 10_000])
def test_member_that_lies_about_its_size_is_refused(made: Made, declared: int) -> None:
    size = struct.pack("<L", declared)
    data = patched(packed({"conversations.json": CLAUDE}), b"PK\x01\x02", 24, size)
    refused(made(data), f"does not have the {declared:,} bytes it declares")


def test_bomb_is_refused(made: Made) -> None:
    path = made({"conversations.json": b"[" + b" " * 12_000_000 + b"]"})
    refused(path, "expands more than 1,000 times")


def test_strong_but_short_compression_is_no_bomb(made: Made) -> None:
    data = b"[" + b" " * 5_000_000 + CLAUDE[1:]
    assert check_archive(made({"conversations.json": data})) == len(data)


def test_more_than_the_total_is_refused(made: Made) -> None:
    limits = Limits(total_bytes=1 << 10)
    path = made({"conversations.json": CLAUDE[:-1] + b" " * 2000 + b"]"})
    refused(path, "more than", limits=limits)


def test_total_counts_all_files_together(made: Made) -> None:
    limits = Limits(total_bytes=len(CLAUDE) + 1)
    paths = [made({"conversations.json": CLAUDE}, f"{n}.zip") for n in range(2)]
    with pytest.raises(SourceError, match="more than"):
        open_export(paths, limits=limits)


def test_members_that_lie_over_each_other_are_refused(made: Made) -> None:
    data = packed({f"conversations-{n}.json": CLAUDE * 90 for n in range(8)}, zipfile.ZIP_STORED)
    entry = data.index(b"PK\x01\x02")
    length = len(CLAUDE) * 90
    kept = data[: 30 + len("conversations-0.json") + length]
    directory = bytearray(data[entry:])
    at = -1
    while (at := directory.find(b"PK\x01\x02", at + 1)) >= 0:
        directory[at + 42 : at + 46] = b"\x00" * 4
    directory[-6:-2] = struct.pack("<L", len(kept))
    path = made(kept + bytes(directory))
    refused(path, "lie over each other")


def test_rare_compression_is_refused(made: Made) -> None:
    path = made(packed({"conversations.json": CLAUDE}, zipfile.ZIP_BZIP2))
    refused(path, "method that is not supported")


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_export_inside_an_export_is_named(made: Made, method: int) -> None:
    inner = packed({"photo.png": b"x", "data/conversations-000.json": CHATGPT})
    data = packed({"conversations.json": CHATGPT, "part-2.zip": inner}, method)
    assert "unpack `export.zip`" in refused(
        made(data), "`part-2.zip` in it is an export of its own"
    )


def test_uploaded_zip_is_somebodys_attachment(made: Made) -> None:
    inner = packed({"conversations.json": CHATGPT})
    other = packed({"thesis.tex": b"x"})
    members = {"conversations.json": CHATGPT, "file-1-mine.zip": inner, "thesis.zip": other}
    assert check_archive(made(members)) == len(CHATGPT)


def test_bare_json_is_an_archive_of_one(made: Made) -> None:
    path = made(b"\xef\xbb\xbf" + CLAUDE, "mine.json")
    export = open_export([path])
    assert (export.names, export.total_bytes) == (["mine.json"], len(CLAUDE) + 3)
    (found,) = export.conversations()
    assert (found.external_id, found.offset, found.data) == ("c1", 4, CLAUDE[1:-1])


@pytest.mark.parametrize("content", [b"", b"hello", b"\x00[]", b"\x1f\x8b"])
def test_what_is_neither_zip_nor_json_is_refused(made: Made, content: bytes) -> None:
    refused(made(content, "mine.json"), "neither a zip nor JSON")


def test_folder_and_missing_file_are_refused(tmp_path: Path) -> None:
    assert "conversations.json" in refused(tmp_path, "it is a folder")
    with pytest.raises(SourceError, match="cannot be read"):
        open_export([tmp_path / "absent.zip"])


def test_no_file_is_a_usage_error() -> None:
    with pytest.raises(UsageError):
        open_export([])


def test_unknown_export_says_what_is_known(made: Made) -> None:
    for path in (made({"Takeout/a.json": b"[]"}), made(b'[{"x": 1}]', "mine.json")):
        with pytest.raises(SourceError) as caught:
            open_export([path])
        assert "Claude.ai" in (caught.value.hint or "")
        assert "ChatGPT" in (caught.value.hint or "")


def test_files_of_two_kinds_are_refused(made: Made) -> None:
    paths = [made({"conversations.json": CLAUDE}), made(CHATGPT, "gpt.json")]
    with pytest.raises(SourceError, match=r"Claude\.ai.*ChatGPT"):
        open_export(paths)


def test_several_zips_are_one_export_whatever_their_order(made: Made) -> None:
    first = made({"conversations.json": CLAUDE}, "conversations-000.zip")
    second = made({"projects/p.json": b'{"uuid": "p", "name": "acme"}'}, "projects-000.zip")
    listed = {"files": ["conversations-000.zip", "projects-000.zip", "conversations-001.zip"]}
    manifest = made(json.dumps(listed).encode(), "manifest-0001.json")
    export = open_export([first, second, manifest, first])
    assert [member.file for member in export.members] == [first]
    assert [note.title for note in export.notes()] == ["acme"]
    assert export.missing == ["conversations-001.zip"]
    assert export.unread == ["manifest-0001.json"]
    assert export.sha256 == open_export([manifest, second, first]).sha256
    assert export.sha256 != open_export([first]).sha256


def test_manifest_alone_asks_for_its_files(made: Made) -> None:
    path = made(b'{"files": ["conversations-000.zip"]}', "manifest-0001.json")
    with pytest.raises(SourceError) as caught:
        open_export([path])
    assert "conversations-000.zip" in (caught.value.hint or "")


def test_shards_are_read_by_number(made: Made) -> None:
    names = ["conversations-10.json", "conversations-2.json", "conversations.json.index"]
    export = open_export([made(dict.fromkeys(names, CHATGPT))])
    assert export.names == ["conversations-2.json", "conversations-10.json"]
    assert [found.external_id for found in export.conversations()] == ["g1", "g1"]


def test_elements_that_are_no_conversations_are_problems(made: Made) -> None:
    long = {"uuid": "c2", "chat_messages": ["x" * 500]}
    members = [{"uuid": "c1", "chat_messages": []}, 7, long, {"uuid": "c3"}, {"chat_messages": []}]
    data = json.dumps(members).encode()[:-1] + b", oops]"
    export = open_export([made({"conversations.json": data})], max_element_bytes=400)
    assert [found.external_id for found in export.conversations()] == ["c1"]
    reasons = [problem.reason for problem in export.problems]
    assert reasons == [
        "not an object", "larger than max_element_bytes (400)", "not a conversation",
        "a conversation without an id", "not JSON",
    ]  # fmt: skip
    for problem in export.problems:
        place = data[problem.byte_offset : problem.byte_offset + problem.byte_length]
        assert problem.data == (None if "larger" in problem.reason else place)
    list(export.conversations())
    assert len(export.problems) == 5


def test_json_that_is_cut_off_names_the_place(made: Made) -> None:
    export = open_export([made(CLAUDE[:-1], "mine.json")])
    with pytest.raises(SourceError, match=f"ends at byte {len(CLAUDE) - 1}"):
        list(export.conversations())


def test_empty_export_is_known_by_its_other_members(made: Made) -> None:
    for members, name in (
        ({"conversations.json": b"[]", "users.json": b"[]"}, "claude-ai"),
        ({"conversations.json": b"[]", "chat.html": b""}, "chatgpt"),
    ):
        export = open_export([made(members)])
        assert (export.source.name, list(export.conversations())) == (name, [])
