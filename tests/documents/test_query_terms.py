"""Search with words alone: stop words that carry meaning, scripts without spaces, spellings, and languages."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from gumshoe.documents.build import DocumentBuildOptions, build_document_index
from gumshoe.documents.index import DocumentIndex
from gumshoe.documents.languages import CHARACTER_LANGUAGES, check_language
from gumshoe.mail.stems import STEMMED_LANGUAGES
from tests.documents.collection import write_jsonl
from tests.errors import raises


def build(directory: Path, texts: dict[str, str], language: str = "en") -> DocumentIndex:
    """Build an index of texts by id."""
    source = write_jsonl(directory / "d.jsonl", [{"id": key, "text": text} for key, text in texts.items()])
    build_document_index([source], directory / "index", DocumentBuildOptions("none", language=language))
    return DocumentIndex(directory / "index")


def find(index: DocumentIndex, query: str) -> list[str]:
    return [hit.document_id for hit in index.search(query)]


def vary(text: str, values: Iterable[str]) -> dict[str, str]:
    """Return a text for each value. The first one is the longest, which other things being equal makes it the last."""
    texts = {value: text.format(value) for value in values}
    first = next(iter(texts))
    return {**{key: each for key, each in texts.items() if key != first}, first: f"{texts[first]} {FILLER}"}


FILLER = "It goes away by itself after some weeks or months in nearly all of those who get it."


@pytest.mark.parametrize(
    ("text", "values", "query"),
    [
        ("Hepatitis {} is a disease of the liver that a virus causes.", "ABCD", "hepatitis A"),
        (
            "hepatitis {} is a disease of the liver that a virus causes.",
            "abcd",
            "what is hepatitis a and how is it treated",
        ),
        ("The doctor gave a patient Vitamin {} for a week.", "ACDK", "vitamin a"),
        ("A house of type {} has a roof of slate.", "ABC", "type A house"),
        ("Call the {} department in case of trouble.", ["IT", "HR", "PR"], "IT department"),
        ("An {} gate has two inputs and an output.", ["OR", "XOR", "NAND"], "OR gate"),
    ],
)
def test_a_stop_word_that_carries_meaning_decides(tmp_path: Path, text: str, values: Iterable[str], query: str) -> None:
    assert find(build(tmp_path, vary(text, values)), query)[0] == next(iter(values))


def test_a_negation_decides_between_equal_texts(tmp_path: Path) -> None:
    texts = {word: f"The rule is {word} valid for members." for word in ("also", "always", "not")}
    assert find(build(tmp_path, texts), "rule is not valid")[0] == "not"


def test_queries_of_stop_words_alone(tmp_path: Path) -> None:
    texts = {
        "play": "To be or not to be, that is the question.",
        "staff": "Ask IT for a new screen.",
        "other": "It is to be seen whether this will be the case or not.",
    }
    index = build(tmp_path, texts)
    assert find(index, "to be or not to be")[0] == "play"
    assert find(index, "IT") == find(index, "it") == ["staff"]


@pytest.mark.parametrize("query", ["IL-6", "IL6", "il\u20116"])
def test_words_of_several_parts_are_found_in_each_way_to_write_them(tmp_path: Path, query: str) -> None:
    texts = {"apart": "The serum has IL-6 in it.", "joined": "The serum has IL6 in it.", "other": "The serum has TNF."}
    assert set(find(build(tmp_path, texts), query)) == {"apart", "joined"}


def test_other_words_count_more_than_stop_words(tmp_path: Path) -> None:
    index = build(
        tmp_path, {"a": "What is in a name, and what is in a pump?", "b": "Leukemia harms the blood of a child."}
    )
    assert find(index, "what is in a child with leukemia")[0] == "b"


@pytest.mark.parametrize(
    ("language", "text", "other", "queries"),
    [
        ("zh", "我们下周讨论水泵的租赁合同。", "他在北京工作了很多年。", ["合同", "水泵", "租赁合同", "租"]),
        ("ja", "来週の会議でポンプの契約を確認します。", "京都は古い都市です。", ["契約", "ポンプ", "会議"]),
        ("ja", "東京都の予算は金曜日です。", "京の都に住む。", ["東京都"]),
        ("ko", "다음 주에 펌프 계약서를 검토합니다.", "부산에서 일했습니다.", ["계약서", "계약", "펌프"]),
        ("th", "สัญญาเช่าปั๊มสิ้นสุดในเดือนมิถุนายน", "เขาทำงานที่กรุงเทพ", ["สัญญา", "ปั๊ม", "มิถุนายน"]),
        ("lo", "ສັນຍາເຊົ່າສິ້ນສຸດ", "ລາວເຮັດວຽກຢູ່ວຽງຈັນ", ["ສັນຍາ"]),
        ("km", "កិច្ចសន្យាជួលត្រូវបញ្ចប់", "គាត់ធ្វើការនៅភ្នំពេញ", ["សន្យា"]),
        ("my", "ငှားရမ်းမှုစာချုပ်ပြီးဆုံးသည်", "သူရန်ကုန်မှာအလုပ်လုပ်သည်", ["စာချုပ်"]),
        ("en", "The pump 水泵 is in the 合同.", "The valve is in the contract.", ["水泵", "合同"]),
    ],
)
def test_scripts_without_spaces_are_searched(
    tmp_path: Path, language: str, text: str, other: str, queries: list[str]
) -> None:
    index = build(tmp_path, {"wanted": text, "other": other}, language)
    for query in queries:
        assert find(index, query)[:1] == ["wanted"]


def test_a_word_of_characters_is_not_found_by_its_characters_apart(tmp_path: Path) -> None:
    assert find(build(tmp_path, {"a": "合法同意"}, "zh"), "合同") == []


def test_the_snippet_shows_the_words_of_a_script_without_spaces(tmp_path: Path) -> None:
    text = "天气很好。" * 100 + "水泵的租赁合同。" + "天气很好。" * 100
    (hit,) = build(tmp_path, {"a": text}, "zh").search("租赁合同", limit=1)
    assert "租赁合同" in hit.snippet


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("Mr. Müller came.", "Mueller"),
        ("Mr. Müller came.", "muller"),
        ("Søren came.", "soren"),
        ("It costs 1,250,000 euros.", "1250000"),
        ("The in\u00advoice num\u200bber is 7.", "invoice number"),
        ("\ufb01ne \uff30\uff35\uff2d\uff30", "fine pump"),
        ("The year is ٢٠٢٤.", "2024"),
    ],
)
def test_other_spellings_are_found(tmp_path: Path, text: str, query: str) -> None:
    assert find(build(tmp_path, {"a": text}), query) == ["a"]


def test_the_language_is_one_that_can_be_searched() -> None:
    for code in ("en", "de", "zh", "th", "und"):
        assert check_language(code) == code
    for code in ("uk", "he", "xx", "eng", "EN", "english", "", "zh-CN"):
        with raises("documents.invalid-language", repr(code), "und"):
            check_language(code)
    assert not STEMMED_LANGUAGES & CHARACTER_LANGUAGES


def test_reported_stop_words_carry_meaning(shared_cases: Path, tmp_path: Path) -> None:
    source = f"jsonl:{shared_cases / 'E14-stop-words-that-matter' / 'a.jsonl'}"
    build_document_index([source], tmp_path / "index", DocumentBuildOptions("none"))
    assert find(DocumentIndex(tmp_path / "index"), "hepatitis A")[0] == "hepA"
