"""What models write as markdown: shown as such, and harmless whatever it is."""

import pytest

from known_state import known_books, known_state
from page import chat_answer

HOSTILE = r"""<script>window.hacked = 1</script>
<img src="x" onerror="window.hacked = 1"> <svg onload="window.hacked = 1"> <iframe srcdoc="<script>top.hacked = 1</script>"></iframe>
<a href="javascript:window.hacked = 1">html</a> <style>body { display: none }</style>
[one](javascript:window.hacked=1) [two](JaVaScRiPt:window.hacked=1) [three](java&#115;cript:hacked=1) [four](data:text/html,<script>hacked=1</script>)
[five](//evil.example/x) [six](/v1/models) [seven](vbscript:x) [eight]( javascript:hacked=1) [nine](blob:https://evil.example/1) [ten](file:///etc/passwd)
![image](https://evil.example/pixel.png) ![again](javascript:hacked=1) <javascript:window.hacked=1> <https://ok.example/"onmouseover=hacked=1>
[**bold** <b>label</b>](https://ok.example/?a=<script>)

# <h1 onclick="hacked=1">title</h1>
- <li><form action="https://evil.example"><input autofocus onfocus="window.hacked=1"></form>

| <td onload=hacked=1> | b |
|---|---|
| [x](javascript:hacked=1) | ![y](https://evil.example/y.png) |

```html
</code></pre><script>window.hacked = 1</script>
```
"""


@pytest.fixture
def answered(server, page):
    """Opens the page, and gives it back once it shows this answer."""
    def show(text):
        page.show_state(known_state(), known_books())
        page.answer_with(chat_answer(text))
        page.open(server.url, "conversation")
        assert page.say("Go on")["state"] == "done"
        return page
    return show


def tags(page):
    return page.script("return [...document.querySelectorAll('#chat-log .answer *')].map((node) => node.localName)")


def links(page):
    return page.script("return [...document.querySelectorAll('#chat-log .answer a')].map((node) => node.href)")


def test_hostile_text_is_inert(server, answered):
    page = answered(HOSTILE)
    allowed = {"p", "br", "a", "code", "pre", "h4", "ul", "li", "div", "table", "thead", "tbody", "tr", "th", "td", "strong", "em"}
    assert set(tags(page)) <= allowed
    assert all(link.startswith(("https://ok.example/", "https://evil.example/")) for link in links(page))
    assert len(links(page)) >= 2
    attributes = page.script("""
        return [...new Set([...document.querySelectorAll('#chat-log .answer, #chat-log .answer *')].flatMap((node) => node.getAttributeNames()))]""")
    assert set(attributes) <= {"class", "href", "target", "rel", "tabindex", "role", "aria-label", "aria-busy"}
    rels = page.script("return [...document.querySelectorAll('#chat-log .answer a')].map((node) => [node.rel, node.target])")
    assert all(rel == ["noopener noreferrer nofollow", "_blank"] for rel in rels)
    assert page.script("return window.hacked") is None
    text = page.script("return document.querySelector('#chat-log .answer').textContent")
    assert "<script>window.hacked = 1</script>" in text and "[one](javascript:window.hacked=1)" in text
    loaded = page.script("return performance.getEntriesByType('resource').map((entry) => entry.name)")
    assert all(name.startswith((server.url, "data:")) for name in loaded)
    page.screenshot("hostile")


def test_hostile_questions_are_text(server, page):
    page.show_state(known_state(), known_books())
    page.answer_with(chat_answer("Yes."))
    page.open(server.url, "conversation")
    turn = page.say("<img src=x onerror='window.hacked=1'> **no**")
    assert turn["question"] == "<img src=x onerror='window.hacked=1'> **no**"
    assert page.script("return document.querySelector('.you p').children.length") == 0


def test_code_tables_and_links(answered):
    page = answered("```python\n**x** <b>\n  y\n```\n\n| a | b |\n|:--|--:|\n| 1 | **2** |\n\n[text](https://ok.example/a_b_c?x=1) https://ok.example/z.")
    assert page.one("#chat-log .answer pre code").text == "**x** <b>\n  y"
    assert page.one("#chat-log .answer pre").get_attribute("aria-label") == "Code python"
    assert [cell.text for cell in page.all("#chat-log .answer td")] == ["1", "2"]
    assert links(page) == ["https://ok.example/a_b_c?x=1", "https://ok.example/z"]


# The module by itself


FORMS = [
    ("a **b** *c* _d_ __e__ ~~f~~ `g`", "<p>a <strong>b</strong> <em>c</em> <em>d</em> <strong>e</strong> <del>f</del> <code>g</code></p>"),
    ("**a *b* c**", "<p><strong>a <em>b</em> c</strong></p>"),
    ("snake_case_name 2 * 3 * 4 **open", "<p>snake_case_name 2 * 3 * 4 **open</p>"),
    ("one\ntwo\n\nthree", "<p>one<br>two</p><p>three</p>"),
    ("# one\n### three", "<h4>one</h4><h6>three</h6>"),
    ("- a\n- b\n  - c\n- d", "<ul><li>a</li><li>b<ul><li>c</li></ul></li><li>d</li></ul>"),
    ("3. a\n4. b", '<ol start="3"><li>a</li><li>b</li></ol>'),
    ("> a\n> > b", "<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote>"),
    ("---", "<hr>"),
    ("Here:\n| a |\n|--|\n| 1 |", '<p>Here:</p><div class="scroll" tabindex="0" role="region" aria-label="Table"><table><thead><tr><th>a</th></tr></thead>'
                                "<tbody><tr><td>1</td></tr></tbody></table></div>"),
    ("``a`b`` \\*c\\* `d", "<p><code>a`b</code> *c* `d</p>"),
    ("&lt;b&gt; <b>", "<p>&amp;lt;b&amp;gt; &lt;b&gt;</p>"),
]
MARKS = ["*a ", "**", "_a", "[", "](", "[a](", "``` ", "> ", ">", "- ", "| ", "<", "![", "~~ ", "https://", "1. ", "#", "  - a\n", "- - "]


@pytest.fixture
def html(server, page):
    """Markdown to what it becomes."""
    page.open(server.url, "conversation")
    return lambda text: page.script("""
        const root = document.createElement('div');
        root.append(...markdown.nodes(arguments[0]));
        return root.innerHTML""", text)


def test_forms(html):
    assert [html(text) for text, _ in FORMS] == [wanted for _, wanted in FORMS]


def test_long_runs_of_marks_come_to_an_end(html):
    for mark in MARKS:
        assert html(mark * 20000 + "\n\nend").endswith("<p>end</p>"), mark
    assert html(" ".join("`" * length for length in range(1, 300))).count("`") == 299 * 150
