import json
from pathlib import Path

import numpy as np
import pytest

from fpmgm.data import sources, text
from fpmgm.data.sources import Piece, fingerprint, pieces
from fpmgm.data.text import TextConfig, held_out, load_text
from fpmgm.data.tokenizing import mask_and_size
from fpmgm.symbols import END_OF_TEXT, symbols_of

VERSE = "".join(f"line {i} of a poem about the {word}\n" for i in range(400) for word in ("sea", "sky", "old oak"))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("FPMGM_CACHE", str(folder))
    return folder


def config_of(source: Path, **changes: object) -> TextConfig:
    return TextConfig(**{"source": str(source), "tokenizer": "bpe-300", "length": 16, **changes})  # type: ignore[arg-type]


def write(path: Path, content: str) -> Path:
    path.write_text(content)
    return path


def test_every_sequence_is_a_piece_of_the_text_between_two_end_of_text_tokens(tmp_path: Path) -> None:
    packed = load_text(config_of(write(tmp_path / "verse.txt", VERSE)))
    end = packed.codec.tokenizer.token_to_id(END_OF_TEXT)
    assert end == 0
    assert (packed.rows[:, 0] == end).all()
    assert (packed.rows[:, -1] == end).all()
    stream = packed.rows[:, 1:-1].flatten().tolist()
    whole = [*packed.codec.tokenizer.encode(VERSE).ids, end]
    assert stream == whole[: len(stream)]
    assert len(whole) - len(stream) < 14


def test_documents_of_jsonl_and_parquet_end_with_end_of_text(tmp_path: Path) -> None:
    from pyarrow import parquet, table

    documents = [VERSE[:700], VERSE[700:1500], VERSE[1500:9000]]
    jsonl = write(tmp_path / "d.jsonl", "".join(json.dumps({"text": d}) + "\n" for d in documents))
    parquet.write_table(table({"body": documents}), tmp_path / "d.parquet")
    by_jsonl = load_text(config_of(jsonl))
    by_parquet = load_text(config_of(tmp_path / "d.parquet", text_field="body"))
    assert np.array_equal(by_jsonl.rows, by_parquet.rows)
    stream = by_jsonl.rows[:, 1:-1].flatten().tolist()
    expected = [token for d in documents for token in [*by_jsonl.codec.tokenizer.encode(d).ids, 0]]
    assert stream == expected[: len(stream)]


def test_a_folder_is_read_file_by_file_in_order(tmp_path: Path) -> None:
    folder = tmp_path / "many"
    (folder / "sub").mkdir(parents=True)
    write(folder / "b.txt", "second\n")
    write(folder / "a.txt", "first\n")
    write(folder / "sub" / "c.jsonl", '{"text": "third"}\n')
    write(folder / "notes.md", "not text data")
    assert [piece.text for piece in pieces(str(folder))] == ["first\n", "second\n", "third"]


def test_pieces_of_a_text_join_to_the_text_and_end_at_line_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "PIECE_BYTES", 100)
    file = write(tmp_path / "verse.txt", VERSE)
    found = list(pieces(str(file)))
    assert "".join(piece.text for piece in found) == VERSE
    assert all(piece.text.endswith("\n") for piece in found)
    assert [piece.ends_document for piece in found] == [False] * (len(found) - 1) + [True]
    assert max(len(piece.text) for piece in found) <= 200


def test_text_is_tokenised_once_and_again_when_its_content_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path / "verse.txt", VERSE)
    reads = []

    def noted(source: str, text_field: str = "text"):  # type: ignore[no-untyped-def]
        reads.append(source)
        return pieces(source, text_field)

    monkeypatch.setattr(text, "pieces", noted)
    first = load_text(config_of(file))
    count = len(reads)
    assert count == 2  # the tokenizer, then the packing
    second = load_text(config_of(file))
    assert len(reads) == count
    assert np.array_equal(first.rows, second.rows)
    load_text(config_of(file, length=20))
    assert len(reads) == count + 1
    write(file, VERSE + "one more line\n")
    load_text(config_of(file))
    assert len(reads) == count + 3


def test_a_kill_while_packing_leaves_no_half_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    file = write(tmp_path / "verse.txt", VERSE)

    def broken(source: str, text_field: str = "text"):  # type: ignore[no-untyped-def]
        yield Piece(VERSE, ends_document=False)
        raise KeyboardInterrupt

    load_text(config_of(file))  # trains the tokenizer
    monkeypatch.setattr(text, "pieces", broken)
    with pytest.raises(KeyboardInterrupt):
        load_text(config_of(file, length=30))
    monkeypatch.undo()
    monkeypatch.setenv("FPMGM_CACHE", str(cache))
    assert len(list((cache / "packed").iterdir())) == 1
    assert load_text(config_of(file, length=30)).rows.shape[1] == 30


@pytest.mark.parametrize("num_rows", [2, 10, 5000, 100_000])
def test_held_out_rows_are_whole_regions_apart_from_the_rest(num_rows: int) -> None:
    train, validation = held_out(num_rows, 0.01)
    assert sorted([*train, *validation]) == list(range(num_rows))
    assert len(validation) == pytest.approx(max(1, 0.01 * num_rows), rel=0.1)
    regions = 1 + int((np.diff(validation) > 1).sum())
    assert regions == (16 if num_rows >= 3200 else 1)


def test_a_byte_level_tokenizer_gives_any_text_back(tmp_path: Path) -> None:
    packed = load_text(config_of(write(tmp_path / "verse.txt", VERSE)))
    odd = "naïve ☃ \t two  spaces\n\nand 日本語"
    assert packed.codec.tokenizer.decode(packed.codec.tokenizer.encode(odd).ids) == odd
    assert packed.codec.tokenizer.get_vocab_size() == 299  # the mask is the 300th


def test_a_source_has_another_fingerprint_when_its_content_changes(tmp_path: Path) -> None:
    file = write(tmp_path / "a.txt", "one")
    first = fingerprint(str(file))
    assert fingerprint(str(write(tmp_path / "b.txt", "one"))) == first
    assert fingerprint(str(write(file, "two"))) != first


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.txt", b"", "holds 0 tokens; one sequence of length 16 needs 14"),
        ("short.txt", b"hi\n", "tokens; one sequence of length 16 needs 14"),
        ("binary.txt", b"abc\0def" * 100, "is binary, not text"),
        ("latin.txt", b"caf\xe9 " * 100, "is not UTF-8 text: invalid continuation byte at byte 3"),
        ("bad.jsonl", b'{"text": "fine"}\n{"text": ', "line 2 is not JSON"),
        ("other.jsonl", b'{"body": "x"}\n', "line 1 has no text in 'text'; it has 'body'"),
        ("half.jsonl", b'{"text": "half \\ud800"}\n', "line 1 holds half a character"),
        ("latin.jsonl", b'{"text": "caf\xe9"}\n', "line 1 is not UTF-8 text: invalid continuation byte"),
        ("list.jsonl", b'{"text": "a"}\n[1]\n', r"line 2 must hold a JSON object, and it holds \[1\]"),
        ("deep.jsonl", b'{"text": ' + b"[" * 20_000, "line 1 is nested too deeply"),
        ("damaged.parquet", b"PAR1 no more", "is damaged or not a parquet file"),
    ],
)
def test_data_that_cannot_be_read_is_refused_with_the_reason(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        load_text(config_of(file))


@pytest.mark.parametrize("column", [[1, 2], [b"bytes"], [["a"]], [None, None], [{"a": "b"}], [True]])
def test_a_parquet_column_that_is_not_text_is_refused(tmp_path: Path, column: list[object]) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    file = tmp_path / "t.parquet"
    parquet.write_table(pyarrow.table({"text": pyarrow.array(column)}), file)
    with pytest.raises(ValueError, match=r"t\.parquet: column 'text' holds .*; it must hold text"):
        load_text(config_of(file))


def test_a_row_of_json_may_hold_nan_beside_its_text(tmp_path: Path) -> None:
    file = write(tmp_path / "scored.jsonl", json.dumps({"text": VERSE, "score": float("nan")}) + "\n")
    assert len(load_text(config_of(file)).rows)


def test_missing_sources_and_wrong_settings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"no data at 'nowhere\.txt'; give a file, a folder, hub:owner/name or one of poetry"
    ):
        load_text(config_of(Path("nowhere.txt")))
    with pytest.raises(ValueError, match=r"holds no \.txt, \.jsonl, \.parquet file"):
        load_text(config_of(tmp_path))
    with pytest.raises(ValueError, match="bpe-100; byte-level BPE has 258 to 1048576 symbols"):
        mask_and_size("bpe-100")
    with pytest.raises(ValueError, match=r"give gpt2, bert, bpe-N, words-N, a tokenizer\.json or a model that exists"):
        mask_and_size("gpt3")
    assert mask_and_size("gpt2") == (50257, 50258)
    assert mask_and_size("bpe-2048") == (2047, 2048)


BERT_LIKE = ("[PAD]", "[CLS]", "[SEP]", "[MASK]", "the", "sea", "is", "old", "and", "wide")


def bert_like(path: Path) -> Path:
    """A tokenizer with BERT's special symbols and a few words."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(BERT_LIKE)}, unk_token="the"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(path))
    return path


def test_padded_sequences_are_one_document_each_cut_off_or_filled_up(tmp_path: Path) -> None:
    tokenizer = bert_like(tmp_path / "tokenizer.json")
    lines = write(tmp_path / "lines.txt", "the sea\n\nthe old sea is wide and old\nis\n")
    packed = load_text(config_of(lines, tokenizer=str(tokenizer), length=6, packing="pad"))
    assert packed.rows.tolist() == [[1, 4, 5, 2, 0, 0], [1, 4, 7, 5, 6, 2], [1, 6, 2, 0, 0, 0]]
    assert packed.codec.symbols == (10, 3, 1, 2, 0)
    assert mask_and_size(str(tokenizer)) == (3, 10)


def test_a_document_longer_than_a_piece_is_one_padded_sequence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "PIECE_BYTES", 16)
    tokenizer = bert_like(tmp_path / "tokenizer.json")
    rows = [{"text": "the sea is old and wide and old"}, {"text": "old sea"}]
    jsonl = write(tmp_path / "d.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    packed = load_text(config_of(jsonl, tokenizer=str(tokenizer), length=5, packing="pad"))
    assert packed.rows.tolist() == [[1, 4, 5, 6, 2], [1, 7, 5, 2, 0]]


def test_padded_text_holds_out_its_last_documents(tmp_path: Path) -> None:
    lines = write(tmp_path / "verse.txt", VERSE)
    packed = load_text(config_of(lines, packing="pad", validation_documents=7))
    assert len(packed.rows) == 1200
    assert packed.held_out.tolist() == list(range(1193, 1200))
    assert packed.train.tolist() == list(range(1193))


def test_a_tokenizer_without_padding_pads_with_the_mask_and_one_without_ends_is_refused(tmp_path: Path) -> None:
    packed = load_text(config_of(write(tmp_path / "verse.txt", VERSE), packing="pad", length=64))
    assert packed.codec.symbols.pad_id == packed.codec.symbols.mask_id == 299
    assert (packed.rows[:, -1] == 299).all()

    from tokenizers import Tokenizer, models

    with pytest.raises(ValueError, match=r"neither <\|endoftext\|> nor \[CLS\] and \[SEP\]"):
        symbols_of(Tokenizer(models.WordLevel({"a": 0}, unk_token="a")))
