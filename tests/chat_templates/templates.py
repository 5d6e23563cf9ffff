"""Random templates: a grammar of what jinja2 has, sound or not, to compare the crate's engine with jinja2."""

import random

NAMES = ["messages", "tools", "x", "y", "z", "ns", "m", "text", "num", "d", "l", "none_value", "missing", "loop", "mac"]
KEYS = ["role", "content", "a", "b", "items", "get", "name", "0", "x", "type", "é"]
STRINGS = [
    "''",
    "'a'",
    "'A b'",
    "' x '",
    "'é中🎉'",
    "'<&>'",
    "'a,b,,c'",
    "'%s'",
    "'{}'",
    '"q\'"',
    "'\\n'",
    "'\\t\\\\'",
    "'ß'",
    "'1'",
    "'-7'",
    "'3.5'",
    "'aaa'",
    "'\\x1c'",
    "'abc def'",
    "'%d-%s'",
    "'ΑΣ'",
]
NUMBERS = ["0", "1", "2", "-1", "3.5", "0.1", "1e20", "7", "10", "99999999999999999999", "1_000", "0x1f"]
TESTS = [
    "defined",
    "undefined",
    "none",
    "string",
    "mapping",
    "iterable",
    "sequence",
    "number",
    "integer",
    "float",
    "boolean",
    "true",
    "false",
    "odd",
    "even",
    "lower",
    "upper",
    "callable",
    "escaped",
    "in [1, 'a']",
    "eq(1)",
    "divisibleby 2",
    "gt 1",
    "sameas true",
    "not none",
    "not defined",
    "filter",
    "test",
]
FILTERS = [
    "trim",
    "upper",
    "lower",
    "length",
    "string",
    "int",
    "float",
    "list",
    "first",
    "last",
    "join",
    "join(', ')",
    "tojson",
    "safe",
    "tojson(indent=2)",
    "default('D')",
    "default('D', true)",
    "items",
    "dictsort",
    "sort",
    "reverse",
    "unique",
    "title",
    "capitalize",
    "replace('a', 'b')",
    "replace('a', 'b', 1)",
    "map('upper')",
    "map(attribute='a')",
    "select",
    "reject",
    "select('string')",
    "selectattr('role')",
    "selectattr('role', 'eq', 'user')",
    "rejectattr('a', 'defined')",
    "abs",
    "sum",
    "min",
    "max",
    "e",
    "escape",
    "indent",
    "indent(2, true)",
    "trim('a')",
    "count",
    "d",
    "map('length')",
    "map('default', 'Z')",
    "sort(reverse=true)",
    "format(1)",
    "tojson(sort_keys=true)",
    "tojson(ensure_ascii=true)",
    "dictsort(by='value')",
    "map('tojson')",
    "tojson(separators=(',', ':'))",
    "unique(case_sensitive=true)",
    "select('gt', 1)",
    "last|string",
    "nosuchfilter",
    "list|length",
]
METHODS = [
    "strip()",
    "lstrip()",
    "rstrip('a ')",
    "split()",
    "split(',')",
    "split(',', 1)",
    "rsplit(None, 1)",
    "upper()",
    "lower()",
    "title()",
    "capitalize()",
    "startswith('a')",
    "endswith(('a', ' '))",
    "replace('a', 'bb')",
    "replace('', '-')",
    "find('a')",
    "count('a')",
    "join(['a', 'b'])",
    "join(l)",
    "get('role')",
    "get('zz', 'dflt')",
    "items()",
    "keys()",
    "values()",
    "copy()",
    "index('a')",
    "index(1)",
    "pop(0)",
    "append(1)",
    "update({})",
    "isdigit()",
    "isalpha()",
    "islower()",
    "isupper()",
    "isspace()",
    "splitlines()",
    "format(1, 2)",
    "partition('b')",
    "rpartition(',')",
    "removeprefix('a')",
    "removesuffix('c')",
    "rfind('a')",
    "splitlines(true)",
    "lstrip(none)",
    "isalnum()",
    "strip('\\n ')",
    "format(a=1)",
    "nosuch()",
    "count(1)",
]
SPACE = ["", "", " ", "\n", "\n\n", "  \n  ", "\t", " \n", "text", "é ", "x\n", "{", "}", "%}", "# ", "\r\n", "\n    "]


class Templates:
    """A stream of random templates, the same for one seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.loops = 0
        # Parts that rendered without an error: larger templates are mostly made of them, as they would all fail else.
        self.good_expressions: list[str] = []
        self.good_bodies: list[str] = []

    def pick(self, *choices: str) -> str:
        return self.random.choice(choices)

    def maybe(self, probability: float) -> bool:
        return self.random.random() < probability

    def atom(self, depth: int) -> str:
        kind = self.random.randrange(12)
        if kind < 4:
            return self.pick(*NAMES)
        if kind < 6:
            return self.pick(*STRINGS)
        if kind < 7:
            return self.pick(*NUMBERS)
        if kind < 8:
            return self.pick("true", "false", "none", "True", "None")
        if depth <= 0:
            return self.pick(*NAMES)
        if kind < 9:
            return "[" + ", ".join(self.expression(depth - 1) for _ in range(self.random.randrange(4))) + "]"
        if kind < 10:
            pairs = [
                f"{self.pick(*STRINGS, *NUMBERS[:4])}: {self.expression(depth - 1)}"
                for _ in range(self.random.randrange(3))
            ]
            return "{" + ", ".join(pairs) + "}"
        if kind < 11:
            items = [self.expression(depth - 1) for _ in range(self.random.randrange(1, 3))]
            return "(" + ", ".join(items) + self.pick("", ",") + ")"
        return self.pick(
            f"range({self.random.randrange(5)})",
            "range(5, 0, -2)",
            "dict(a=1, b='x')",
            "namespace(a=1)",
            "mac(1)",
            "mac('a', b=2)",
            "loop.index",
            "loop.index0",
            "loop.last",
            "loop.first",
            "loop.length",
            "loop.revindex",
            "loop.previtem",
            "loop.nextitem",
            "loop.cycle('a', 'b')",
            "loop.changed(x)",
            "caller()",
            "varargs",
            "kwargs",
            "strftime_now('%d %b %Y')",
            "mac(*l)",
            "mac(**d)",
        )

    def postfix(self, depth: int) -> str:
        text = self.atom(depth)
        while self.maybe(0.45):
            kind = self.random.randrange(8)
            if kind < 2:
                text += "." + self.pick(*[key for key in KEYS if not key.startswith("0") and key != "é"])
            elif kind < 3:
                text += "[" + self.pick("0", "-1", "1", "99", *(f"'{key}'" for key in KEYS)) + "]"
            elif kind < 4:
                text += (
                    "["
                    + self.pick(":", "1:", ":-1", "::-1", "::2", "1:3", "-2:", "5:1:-1", ":none", "'a':", "::0")
                    + "]"
                )
            elif kind < 6:
                text += "." + self.pick(*METHODS)
            elif kind < 7:
                text += "|" + self.pick(*FILTERS)
            else:
                text = f"({text} is {self.pick(*TESTS)})"
        return text

    def expression(self, depth: int = 3) -> str:
        if len(self.good_expressions) > 50 and self.maybe(0.75):
            return self.random.choice(self.good_expressions)
        if depth <= 0 or self.maybe(0.35):
            return self.postfix(depth)
        left, right = self.expression(depth - 1), self.expression(depth - 1)
        kind = self.random.randrange(10)
        if kind < 3:
            return f"{left} {self.pick('+', '+', '~', '~', '-', '*', '/', '//', '%', '**')} {right}"
        if kind < 5:
            operator = self.pick("==", "!=", "<", "<=", ">", ">=", "in", "not in")
            return f"{left} {operator} {right}"
        if kind < 6:
            return f"{left} {self.pick('and', 'or')} {right}"
        if kind < 7:
            return f"{self.pick('not', '-', '+')} {left}"
        if kind < 8:
            return f"{left} if {right}" + (f" else {self.expression(depth - 1)}" if self.maybe(0.8) else "")
        if kind < 9:
            return f"({left})"
        return f"{left}|{self.pick(*FILTERS)}"

    def tag(self, text: str) -> str:
        return "{%" + self.pick("", "-", "+", "-") + f" {text} " + self.pick("", "-", "+", "") + "%}"

    def output(self, text: str) -> str:
        return "{{" + self.pick("", "-", "") + f" {text} " + self.pick("", "-", "") + "}}"

    def target(self) -> str:
        return self.pick("x", "y", "z", "m", "x, y", "text", "loop" if self.maybe(0.02) else "num")

    def statement(self, depth: int) -> str:
        kind = self.random.randrange(24)
        if kind < 6 or depth <= 0:
            return self.output(self.expression())
        if kind < 9:
            return self.tag(f"set {self.pick('x', 'y', 'z', 'ns.a', 'ns.b', 'x, y', 'text')} = {self.expression()}")
        if kind < 12:
            text = self.tag(f"if {self.expression()}") + self.body(depth - 1)
            while self.maybe(0.25):
                text += self.tag(f"elif {self.expression()}") + self.body(depth - 1)
            if self.maybe(0.4):
                text += self.tag("else") + self.body(depth - 1)
            return text + self.tag("endif")
        if kind < 16:
            iterable = self.pick(
                "messages", "l", "d", "d.items()", "range(3)", "'abc'", "messages[::-1]", "x", self.expression()
            )
            target = "k, v" if iterable == "d.items()" and self.maybe(0.8) else self.target()
            test = f" if {self.expression(2)}" if self.maybe(0.25) else ""
            recursive = " recursive" if self.maybe(0.08) else ""
            self.loops += 1
            body = self.body(depth - 1)
            if recursive and self.maybe(0.5):
                body += "{{ loop(" + self.pick("x", "[]", "l", "m") + ") if loop.depth < 3 }}"
            self.loops -= 1
            text = self.tag(f"for {target} in {iterable}{test}{recursive}") + body
            if self.maybe(0.15):
                text += self.tag("else") + self.body(depth - 1)
            return text + self.tag("endfor")
        if kind < 17:
            if self.loops and self.maybe(0.7):
                return (
                    self.tag(f"if {self.expression(2)}") + self.tag(self.pick("break", "continue")) + self.tag("endif")
                )
            return self.tag(f"set {self.pick('x', 'y')}") + self.body(depth - 1) + self.tag("endset")
        if kind < 18:
            loops, self.loops = self.loops, 0
            parameters = self.pick("", "a", "a, b=1", "a='x', b=a", "x, y=2", "caller=none")
            text = (
                self.tag(f"macro {self.pick('mac', 'mac', 'x')}({parameters})")
                + self.body(depth - 1)
                + self.tag("endmacro")
            )
            self.loops = loops
            return text
        if kind < 19:
            filters = self.pick("upper", "trim", "replace('a', 'b')", "trim|upper", "length", "tojson", "indent(2)")
            return self.tag(f"filter {filters}") + self.body(depth - 1) + self.tag("endfilter")
        if kind < 20:
            loops, self.loops = self.loops, 0
            call = self.pick("call mac(1)", "call(a) mac(1)", "call mac()", "call(a, b=2) mac(x)", "generation")
            text = (
                self.tag(call) + self.body(depth - 1) + self.tag("endgeneration" if call == "generation" else "endcall")
            )
            self.loops = loops
            return text
        if kind < 21:
            return (
                self.tag(f"with {self.pick('x = 1', 'x = y, y = x', 'm = messages', 'x, y = l[:2]')}")
                + self.body(depth - 1)
                + self.tag("endwith")
            )
        if kind < 22:
            return "{#" + self.pick("", "-") + " comment " + self.pick("", "-") + "#}"
        if kind < 23:
            return self.tag("raw") + self.pick("{{ x }}", "{% if %}", " \n ") + self.tag("endraw")
        return (
            self.tag(f"set {self.pick('x', 'y')} | {self.pick('upper', 'trim', 'length', 'tojson')}")
            + self.body(depth - 1)
            + self.tag("endset")
        )

    def body(self, depth: int) -> str:
        text = self.random.choice(SPACE)
        for _ in range(self.random.randrange(1, 4)):
            good = len(self.good_bodies) > 50 and self.maybe(0.7)
            text += self.random.choice(self.good_bodies) if good else self.statement(depth)
            text += self.random.choice(SPACE)
        return text

    def template(self) -> tuple[str, str, str]:
        """A template, with the kind of its new part and that part."""
        kind = self.random.random()
        if kind < 0.5:
            part = self.expression(2)
            return "{% set ns = namespace(a=1, b='B', c=[]) %}{{ " + part + " }}", "expression", part
        if kind < 0.8:
            part = self.statement(2)
            prelude = "{% macro mac(a, b='b') %}({{ a }}{{ b }}{{ caller() if caller }}){% endmacro %}"
            return "{% set ns = namespace(a=1, b='B', c=[]) %}" + prelude + part, "body", part
        return self.large_template(), "", ""

    def keep(self, kind: str, part: str) -> None:
        """Keeps a part that rendered."""
        pool = {"expression": self.good_expressions, "body": self.good_bodies}.get(kind)
        if pool is not None and len(part) < 400:
            if len(pool) < 3000:
                pool.append(part)
            else:
                pool[self.random.randrange(len(pool))] = part

    def large_template(self) -> str:
        prelude = "{% set ns = namespace(a=1, b='B', c=[]) %}" if self.maybe(0.8) else ""
        if self.maybe(0.5):
            prelude += "{% macro mac(a, b='b') %}({{ a }}{{ b }}{{ caller() if caller }}){% endmacro %}"
        return prelude + "".join(self.body(3) for _ in range(self.random.randrange(1, 5)))

    def mutated(self, source: str) -> str:
        """A template with some bytes changed, or parts moved."""
        for _ in range(self.random.randrange(1, 6)):
            at = self.random.randrange(len(source) + 1)
            end = min(len(source), at + self.random.choice([0, 1, 1, 2, 8, 40]))
            other = self.random.randrange(len(source) + 1)
            new = self.random.choice(
                [
                    "",
                    "{{",
                    "}}",
                    "{%",
                    "%}",
                    "'",
                    '"',
                    "(",
                    ")",
                    "[",
                    "]",
                    "|",
                    ".",
                    "-",
                    "\\",
                    " ",
                    "\n",
                    "is",
                    "not",
                    "0",
                    "é",
                    "\x00",
                    source[other : other + self.random.choice([1, 5, 20, 80])],
                    "{% endif %}",
                    "{% endfor %}",
                    "{#",
                    "#}",
                    "loop",
                    "~",
                    "**",
                ]
            )
            source = source[:at] + new + source[end:]
        return source
