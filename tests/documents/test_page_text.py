"""Text of HTML pages: everything that a page shows but navigation, or all of its main element."""

import pytest

from gumshoe.documents.file_text import FileProblem, FileText, extract_file_text
from gumshoe.documents.page_requests import find_refresh, parse_refresh
from gumshoe.documents.page_text import Scope
from tests.cpu_time import limit_cpu
from tests.documents.file_samples import PARAGRAPH, html_page
from tests.tiers import nightly_except

SHOWN = {
    "div": "<div>FACT one two.</div>",
    "div-with-class": "<div class='note sidebar'>FACT</div>",
    "aside": "<aside><p>FACT</p></aside>",
    "section": "<section>FACT</section>",
    "custom-element": "<my-note>FACT</my-note>",
    "bare-text": "FACT",
    "span": "<span>FACT</span>",
    "caption-of-figure": "<figure><img src=x><figcaption>FACT</figcaption></figure>",
    "caption-of-table": "<table><caption>FACT</caption><tr><td>x</td></tr></table>",
    "cell": "<table><tr><td>a</td><td>FACT</td></tr></table>",
    "foot-of-table": "<table><tr><td>1</td></tr><tfoot><tr><td>FACT</td></tr></tfoot></table>",
    "list-of-links": "<ul><li><a href='/a'>FACT</a></li><li><a href='/b'>b</a></li></ul>",
    "link-paragraph": "<p><a href=/x>FACT</a></p>",
    "description": "<dl><dt>term</dt><dd>FACT</dd></dl>",
    "question": "<details><summary>FACT?</summary>x</details>",
    "answer": "<details><summary>Q?</summary><div>FACT</div></details>",
    "accordion-button": "<button class=accordion>FACT?</button><div class=panel>x</div>",
    "accordion-answer": "<button>Q?</button><div class='panel collapse' style='display: none'>FACT</div>",
    "controlled-answer": "<button aria-controls=a1>Q?</button><div id=a1 hidden>FACT</div>",
    "bootstrap-answer": "<button data-bs-target='#a2'>Q?</button><div id=a2 style='display:none'>FACT</div>",
    "tab": "<div role=tabpanel hidden>FACT</div>",
    "found-by-search": "<div hidden=until-found>FACT</div>",
    "dialog": "<dialog open>FACT</dialog>",
    "address": "<address>FACT</address>",
    "quote": "<blockquote>FACT</blockquote>",
    "code": "<pre>FACT\n  one</pre>",
    "header-of-article": "<section><header><p>FACT</p></header><p>x</p></section>",
    "footer-of-article": "<section><p>x</p><footer>FACT</footer></section>",
    "legend": "<fieldset><legend>FACT</legend></fieldset>",
    "label": "<form><label>FACT <input></label></form>",
    "options": "<select><option>FACT<option>other</select>",
    "text-field": "<textarea>FACT</textarea>",
    "time": "<time>FACT</time>",
    "center": "<center>FACT</center>",
    "menu": "<menu><li>FACT</li></menu>",
    "vector-text": "<svg><title>Icon</title><text>FACT</text></svg>",
    "formula": "<math><mi>FACT</mi></math>",
    "without-scripts": "<noscript><p>FACT</p></noscript>",
    "frame": "<iframe srcdoc='&lt;p&gt;FACT&lt;/p&gt;'></iframe>",
    "shadow": "<my-box><template shadowrootmode=open><p>FACT</p></template></my-box>",
    "alternative-text": "<img src=x alt='FACT by month and site'>",
    "footnote": "<section class=footnotes><ol><li id=fn1>FACT</li></ol></section>",
    "named-like-navigation": "<div class='menu'><p>FACT of the restaurant: soup, fish and cake.</p></div>",
    "nested-list": "<ul><li>a<ul><li>FACT</li></ul></li></ul>",
}
NOT_SHOWN = {
    "nav": "<nav><a href=/x>FACT</a></nav>",
    "role": "<div role=navigation><a href=/x>FACT</a></div>",
    "breadcrumbs": "<ol class=breadcrumbs><li><a href=/>FACT</a></ol>",
    "pages": "<div class='site-pagination'><a href=/2>FACT</a></div>",
    "skip": "<a href='#main'>Skip to main content FACT</a>",
    "hidden": "<div hidden>FACT</div>",
    "not-displayed": "<div style='color: red; display:none'>FACT</div>",
    "hidden-dialog": "<button data-target='#m'>x</button><div id=m class='modal panel' style='display:none'>FACT</div>",
    "script": "<script>FACT</script>",
    "style": "<style>FACT {}</style>",
    "comment": "<!-- FACT -->",
    "template": "<template><p>FACT</p></template>",
    "icon": "<svg><title>FACT</title></svg>",
    "cookies": "<div id=cookie-banner>We use cookies. <b>FACT</b> <button>Accept all</button></div>",
    "scripts-wanted": "<noscript>Please enable JavaScript to see FACT.</noscript>",
}


def extract(html: str, scope: Scope) -> FileText | FileProblem:
    return extract_file_text(html.encode(), "html", None, scope)


def text_of(html: str, scope: Scope = "page") -> str:
    found = extract(html, scope)
    assert isinstance(found, FileText)
    return found.text


@pytest.mark.parametrize("scope", ["page", "main"])
@pytest.mark.parametrize("main", ["main", "article", "div"])
@pytest.mark.parametrize("name", SHOWN)
def test_what_a_page_shows_is_kept(name: str, main: str, scope: Scope) -> None:
    text = text_of(html_page(SHOWN[name], main=main), scope)
    assert "FACT" in text
    assert "Menu entry" not in text
    assert text.count("day and night") == 6


@pytest.mark.parametrize("scope", ["page", "main"])
@pytest.mark.parametrize("name", NOT_SHOWN)
def test_navigation_and_hidden_parts_are_left_out(name: str, scope: Scope) -> None:
    text = text_of(html_page(NOT_SHOWN[name]), scope)
    assert "FACT" not in text
    assert text.count("day and night") == 6


@pytest.mark.parametrize(
    "extra",
    [
        "<section class=comments><p>EXTRA</p></section>",
        "<div class=share><a href=/t>EXTRA</a></div>",
        "<ul class='related-posts'><li><a href=/a>EXTRA</a></ul>",
    ],
)
def test_the_main_element_is_without_what_surrounds_an_article(extra: str) -> None:
    assert "EXTRA" not in text_of(html_page(extra), "main")
    assert "EXTRA" in text_of(html_page(extra), "page")


def test_everything_beside_the_main_text_is_kept_on_a_page_without_landmarks() -> None:
    rows = "<tr><td><div>Fuses: 16 A.</div></td></tr>"
    html = f"<body><table><tr><td><p>{PARAGRAPH}</p></td></tr>{rows}</table></body>"
    assert "16 A" in text_of(html, "main")
    parts = f"<div><p>{PARAGRAPH}</p></div><div>Fuses: 16 A.</div>"
    two = f"<body><div id=a>{parts}</div><div><a href=/>Topic</a></div></body>"
    assert "16 A" in text_of(two, "main")
    assert "Topic" not in text_of(two, "main")


def test_a_page_of_which_everything_is_hidden_is_shown() -> None:
    assert "pumps" in text_of(f"<body><div hidden><p>{PARAGRAPH}</p></div></body>")


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("10<sup>9</sup> cells", "10^9 cells"),
        ("H<sub>2</sub>O", "H2O"),
        ("<ruby>漢<rt>かん</rt>字<rt>じ</rt></ruby>", "漢字 (かんじ)"),
        ("in&shy;voice num&#8203;ber", "invoice number"),
        ("pump<wbr>house", "pumphouse"),
        ("a&nbsp;b", "a b"),
        ("<select><option>S<option>M</select>", "S, M"),
    ],
)
def test_words_are_whole(html: str, text: str) -> None:
    assert text in text_of(html_page(f"<p>{html}</p>"))


@pytest.mark.parametrize(
    "text",
    [
        "You need to enable JavaScript to run this app.",
        "This site requires JavaScript. Please turn it on and reload.",
        "JavaScript is disabled in your browser.",
        "Enable JavaScript and cookies to continue",
        "Just a moment... Checking your browser before you continue.",
        "Bitte aktivieren Sie JavaScript, um diese Seite zu sehen.",
        "Veuillez activer JavaScript pour continuer.",
        "Por favor, habilite JavaScript en su navegador.",
    ],
)
@pytest.mark.parametrize(
    "form", ["<noscript>{}</noscript><div id=root></div>", "<p>{}</p>", "<h1>App</h1><div>{}</div>"]
)
def test_a_page_that_only_asks_for_javascript_is_no_document(text: str, form: str) -> None:
    found = extract(f"<title>App</title><body>{form.format(text)}</body>", "main")
    assert isinstance(found, FileProblem)
    assert found.reason in {"needs JavaScript", "no text"}


@pytest.mark.parametrize(
    "text",
    [
        "<p>We use cookies and similar technologies to give you the best experience. Please accept all cookies.</p>",
        "<h2>Your privacy</h2><p>We and our 842 partners store data. By clicking accept you consent.</p>"
        "<button>Accept all</button><button>Reject all</button><button>Manage settings</button>",
        "<p>Wir verwenden Cookies. Bitte stimmen Sie zu.</p><button>Alle akzeptieren</button>",
        "<p>Nous utilisons des cookies pour mesurer l'audience.</p><button>Tout refuser</button>",
    ],
)
def test_a_page_that_only_asks_for_consent_is_no_document(text: str) -> None:
    found = extract(f"<title>Pumps</title><body><h1>Pumps</h1>{text}</body>", "page")
    assert isinstance(found, FileProblem)
    assert found.reason in {"asks for consent", "no text"}


@pytest.mark.parametrize(
    "text",
    [
        "JavaScript is enabled by default in most browsers. Open the settings, choose Site permissions, and look "
        "for the entry JavaScript there. The pump page is one of the few pages of this handbook with a script in it.",
        "Cookies for twelve people: take 200 g of flour, two eggs and some sugar. Bake them for ten minutes at "
        "180 degrees until they are brown at the edge, and let them cool down.",
        "The cookie law: a site needs consent before it stores data. Fines of up to 20 million euros were "
        "imposed in 2021 on firms that made refusing harder than accepting. The pump maker was one of the firms.",
    ],
)
def test_a_page_about_scripts_or_cookies_is_a_document(text: str) -> None:
    assert text[:20] in text_of(f"<title>Help</title><body><p>{text}</p></body>")


@pytest.mark.parametrize(
    ("value", "target"),
    [
        ("0; url=/new", "/new"),
        ("0;URL='https://a.example/x?a=1&b=2'", "https://a.example/x?a=1&b=2"),
        ("5, url = new.html", "new.html"),
        ("0 ; /new", "/new"),
        ("300; url=/later", None),
        ("30", None),
        ("", None),
        ("soon; url=/x", None),
    ],
)
def test_a_refresh_names_the_page_that_follows(value: str, target: str | None) -> None:
    assert parse_refresh(value) == target


@pytest.mark.parametrize(
    ("html", "target"),
    [
        ("<meta http-equiv=refresh content='0;url=/n'>", "/n"),
        ('<META content="0; URL=/n?a=1&amp;b=2" HTTP-EQUIV="Refresh">', "/n?a=1&b=2"),
        ("<!-- <meta http-equiv=refresh content='0;url=/n'> -->", None),
        ("<noscript><meta http-equiv=refresh content='0;url=/n'></noscript>", None),
        ("<script>'<meta http-equiv=refresh content=0;url=/n>'</script>", None),
        ("<meta name=x content='0;url=/n'>", None),
    ],
)
def test_a_refresh_is_found_in_a_page(html: str, target: str | None) -> None:
    assert find_refresh(html) == target


def test_a_long_page_that_goes_elsewhere_is_a_document() -> None:
    head = "<meta http-equiv=refresh content='5;url=/next'>"
    found = extract(html_page("").replace("<head>", f"<head>{head}"), "page")
    assert isinstance(found, FileText)
    assert found.refresh == ""


@pytest.mark.ci
@pytest.mark.parametrize("scope", nightly_except({"page"}, ["page", "main"]))
@pytest.mark.parametrize(
    "piece",
    ["<p>", "<div class=menu>", "<article>", "<div style=display:none>", "<a href=#x>", "<table><tr><td>", "<b>"],
)
def test_pages_of_thousands_of_elements_are_read_in_linear_time(scope: Scope, piece: str) -> None:
    """3,000 elements took minutes, side by side or one in another."""
    last = "The pump is to be run by two persons, and never dry. " * 20
    end = f"</{piece[1:].split()[0].partition('>')[0]}>"
    for opened in (piece * 3_000, f"{piece}word{end}" * 3_000):
        with limit_cpu(15, piece):
            found = extract(f"<body><p>First.</p>{opened}<p>{last}</p>", scope)
        if "none" not in piece and "menu" not in piece:
            assert isinstance(found, FileText)
            assert last.strip() in found.text


def test_text_hidden_in_hidden_text_is_not_all_of_a_page() -> None:
    nested = "<div style=display:none>SECRET"
    found = extract(f"<body><p>Shown.</p>{nested * 3}", "page")
    assert isinstance(found, FileText)
    assert found.text == "Shown."


@pytest.mark.parametrize("piece", ["<div hidden>", "<button>", "<ruby>x<rt>", "<table><tr><td>", "<a>"])
def test_hostile_nesting_is_read(piece: str) -> None:
    extract(f"<body>{piece * 300}bottom", "page")
