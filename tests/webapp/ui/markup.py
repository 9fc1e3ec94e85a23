"""Reads pages as a browser does, and says what in them could run or get round our content security policy."""

from dataclasses import dataclass, field
from html.parser import HTMLParser

ADDRESSES = ("href", "src", "action", "formaction", "xlink:href", "srcdoc", "data")
VOID = {"meta", "link", "input", "br", "img", "hr", "wbr", "source", "area", "base", "col", "embed", "track"}


@dataclass(frozen=True)
class Element:
    tag: str
    attributes: dict[str, str]
    text: str = ""

    def __getitem__(self, name: str) -> str:
        return self.attributes[name]

    def get(self, name: str) -> str:
        return self.attributes.get(name, "")


@dataclass
class Page(HTMLParser):
    """The elements of a page in order, with the text directly and deeper in them."""

    html: str
    elements: list[Element] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self._open: list[tuple[str, dict[str, str], list[str]]] = []
        self.text, self._data = "", list[str]()
        self.feed(self.html)
        self.close()
        while self._open:
            self._leave()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        if tag in VOID:
            self.elements.append(Element(tag, attributes))
        else:
            self._open.append((tag, attributes, []))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(Element(tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        if tag in [each[0] for each in self._open]:
            while self._leave() != tag:
                pass

    def handle_data(self, data: str) -> None:
        self.text += data
        self._data.append(data)
        for _, _, parts in self._open:
            parts.append(data)

    def _leave(self) -> str:
        tag, attributes, parts = self._open.pop()
        self.elements.append(Element(tag, attributes, "".join(parts)))
        return tag

    @property
    def words(self) -> str:
        """All text of the page, one blank between any two words."""
        return " ".join(" ".join(self._data).split())

    def all(self, tag: str, **wanted: str) -> list[Element]:
        """Elements with these attributes; ``data_x`` stands for ``data-x``."""
        names = {name.rstrip("_").replace("_", "-"): value for name, value in wanted.items()}
        return [
            one
            for one in self.elements
            if one.tag == tag and all(one.get(name) == value for name, value in names.items())
        ]

    def one(self, tag: str, **wanted: str) -> Element:
        found = self.all(tag, **wanted)
        assert len(found) == 1, f"{len(found)} elements {tag} {wanted}"
        return found[0]

    def by_id(self, wanted: str) -> Element:
        found = [one for one in self.elements if one.get("id") == wanted]
        assert len(found) == 1, f"{len(found)} elements with the id {wanted}"
        return found[0]

    def offences(self) -> list[str]:
        """What could run, or needs an exception from the policy."""
        return [said for one in self.elements for said in _offences(one)]

    def doubled_ids(self) -> list[str]:
        ids = [one["id"] for one in self.elements if "id" in one.attributes]
        return sorted({each for each in ids if ids.count(each) > 1})

    def broken_references(self) -> list[str]:
        """Labels, descriptions and links within the page that lead nowhere."""
        ids = {one["id"] for one in self.elements if "id" in one.attributes}
        wanted = [
            target
            for one in self.elements
            for name in ("for", "aria-describedby", "aria-labelledby", "list")
            for target in one.get(name).split()
        ]
        wanted += [one["href"][1:] for one in self.all("a") if one.get("href").startswith("#")]
        return sorted(set(wanted) - ids)


def _offences(one: Element) -> list[str]:
    found = [f"{one.tag} {name}={value!r:.80}" for name, value in one.attributes.items() if name.startswith("on")]
    if "style" in one.attributes or one.tag == "style":
        found.append(f"{one.tag} with a style of its own")
    if one.tag == "script" and (not one.get("src") or one.text.strip()):
        found.append(f"inline script {one.text!r:.80}")
    if one.tag in ("iframe", "object", "embed", "base"):
        found.append(one.tag)
    for name in ADDRESSES:
        address = one.get(name)
        if ":" in address.split("/")[0] or address.startswith("//"):
            found.append(f"{one.tag} {name} leads elsewhere: {address!r:.80}")
    return found
