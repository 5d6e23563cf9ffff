"""Random conversations: what users send, and what nobody should."""

import random
from typing import Any

WORDS = [
    "the",
    "a",
    "Paris",
    "weather",
    "is",
    "what",
    "think",
    "hello",
    "<b>",
    "&",
    '"quoted"',
    "'single'",
    "é",
    "中文",
    "שלום",
    "مرحبا",
    "🎉",
    "👩\u200d👩\u200d👧",
    "\\n",
    "{curly}",
    "{{x}}",
    "{%",
    "raw",
    "%}",
    "3.14",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<|im_end|>",
    "<|eot_id|>",
    "</s>",
    "[INST]",
    "[/INST]",
    "/nothink",
    "<|end|>",
    "<tool_response>",
    "</tool_response>",
    "ﬁ",
    "ß",
    "İ",
    "ǆ",
    "Σ",
    "<end_of_turn>",
    "\uffff",
    "\u200f",
    "```",
    "Ab,c",
]
WORDS += ["\u2028", "```python\nx = 1\n```"]
EDGES = [
    "",
    " ",
    "\n",
    "\t",
    "\r\n",
    "\x1c",
    "\x1f",
    "\u00a0",
    "\u3000",
    "\u0085",
    "\x00",
    "\x0b",
    "  \n\n  ",
    "\u200b",
]


class Conversations:
    """A stream of random conversations, the same for one seed."""

    def __init__(self, seed: int | str) -> None:
        self.random = random.Random(seed)

    def maybe(self, probability: float) -> bool:
        return self.random.random() < probability

    def text(self, most: int = 8) -> str:
        words = [self.random.choice(WORDS) for _ in range(self.random.randrange(most + 1))]
        text = self.random.choice([" ", " ", " ", "\n", ""]).join(words)
        if self.maybe(0.25):
            text = self.random.choice(EDGES) + text
        if self.maybe(0.25):
            text += self.random.choice(EDGES)
        return text

    def number(self) -> int | float:
        return self.random.choice(
            [
                self.random.randrange(-5, 20),
                self.random.randrange(-(10**25), 10**25),
                self.random.uniform(-100, 100),
                self.random.uniform(-1, 1) * 10.0 ** self.random.randrange(-30, 30),
                2**63,
                -(2**63),
                2**63 - 1,
                1.0,
                -0.0,
                1e16,
                1e-5,
                1e22,
                0.1,
                1e308,
            ]
        )

    def json(self, depth: int = 0) -> Any:
        kind = self.random.randrange(9 if depth < 3 else 5)
        if kind == 0:
            return None
        if kind == 1:
            return self.maybe(0.5)
        if kind == 2:
            return self.number()
        if kind < 5:
            return self.text(4)
        if kind < 7:
            return [self.json(depth + 1) for _ in range(self.random.randrange(4))]
        return self.object(depth)

    def object(self, depth: int = 0) -> dict[str, Any]:
        keys = ["city", "unit", "n", "items", "keys", "é", "a b", "type", "name", "content", "0", "get", ""]
        return {self.random.choice(keys): self.json(depth + 1) for _ in range(self.random.randrange(5))}

    def schema(self, depth: int = 0) -> dict[str, Any]:
        kind = self.random.choice(["string", "integer", "number", "boolean", "array", "object", ["string", "null"]])
        schema: dict[str, Any] = {"type": kind}
        if self.maybe(0.6):
            schema["description"] = self.text()
        if self.maybe(0.2):
            schema["enum"] = [self.text(2) for _ in range(self.random.randrange(3))]
        if self.maybe(0.2):
            schema["default"] = self.json(2)
        if self.maybe(0.1):
            schema["nullable"] = self.maybe(0.5)
        if kind == "array" and self.maybe(0.8):
            schema["items"] = self.schema(depth + 1) if depth < 3 else {}
        if kind == "object":
            schema.update(self.parameters(depth + 1))
        if self.maybe(0.05):
            schema["anyOf"] = [{"type": "string"}, {"type": "null"}]
        return schema

    def parameters(self, depth: int = 0) -> dict[str, Any]:
        names = self.random.sample(["city", "unit", "n", "flag", "items", "when", "é"], self.random.randrange(4))
        properties = {name: self.schema(depth) if depth < 3 else {"type": "string"} for name in names}
        result: dict[str, Any] = {"type": "object", "properties": properties}
        if self.maybe(0.7):
            result["required"] = [name for name in names if self.maybe(0.5)]
        return result

    def tool(self) -> dict[str, Any]:
        function: dict[str, Any] = {"name": self.random.choice(["get_weather", "python", "search", "f.g", "é"])}
        if self.maybe(0.9):
            function["description"] = self.text()
        if self.maybe(0.9):
            function["parameters"] = self.parameters()
        if self.maybe(0.2):
            function["return"] = self.schema()
        if self.maybe(0.1):
            function["strict"] = True
        return {"type": "function", "function": function} if self.maybe(0.9) else function

    def tool_call(self) -> dict[str, Any]:
        arguments: Any = self.object() if self.maybe(0.75) else '{"city": "Paris"}' if self.maybe(0.7) else self.text()
        if self.maybe(0.02):
            arguments = None
        call: dict[str, Any] = {
            "function": {"name": self.random.choice(["get_weather", "search"]), "arguments": arguments}
        }
        if self.maybe(0.8):
            call["id"] = self.random.choice(["abcdef123", "call_1", "functions.search:0"])
        if self.maybe(0.8):
            call["type"] = "function"
        return call if self.maybe(0.9) else call["function"]

    def content(self, role: str) -> Any:
        kind = self.random.random()
        if kind < 0.75:
            return self.text()
        if kind < 0.8 and role == "assistant":
            return f"<think>\n{self.text()}\n</think>\n\n{self.text()}"
        if kind < 0.83:
            return None
        if kind < 0.85:
            return ""
        if kind < 0.86:
            return self.json()
        parts: list[Any] = []
        for _ in range(self.random.randrange(4)):
            kind = self.random.random()
            if kind < 0.75:
                parts.append({"type": "text", "text": self.text()})
            elif kind < 0.85:
                parts.append({"type": self.random.choice(["image", "video", "audio", "image_url"])})
            elif kind < 0.9:
                parts.append({"type": "text", "content": self.text()})
            else:
                parts.append(self.text())
        return parts

    def message(self, role: str) -> dict[str, Any]:
        message: dict[str, Any] = {"role": role, "content": self.content(role)}
        if role == "assistant":
            if self.maybe(0.25):
                message[self.random.choice(["reasoning_content", "thinking", "reasoning"])] = self.text()
            if self.maybe(0.25):
                message["tool_calls"] = [self.tool_call() for _ in range(self.random.choice([0, 1, 1, 1, 2, 3]))]
                if self.maybe(0.4):
                    message["content"] = self.random.choice([None, ""])
            if self.maybe(0.05):
                message["tool_calls"] = None
        if role in ("tool", "ipython", "tool_results") and self.maybe(0.8):
            message["name"] = "get_weather"
            message["tool_call_id"] = self.random.choice(["abcdef123", "call_1"])
        if self.maybe(0.03):
            del message["content"]
        if self.maybe(0.03):
            message[self.random.choice(["name", "train", "weight", "prefix", "citations"])] = self.json()
        if self.maybe(0.1):
            items = list(message.items())
            self.random.shuffle(items)
            message = dict(items)
        return message

    def tame_messages(self) -> list[dict[str, Any]]:
        """A conversation that most templates take: roles alternate, and contents are strings."""
        messages: list[dict[str, Any]] = []
        if self.maybe(0.5):
            messages.append({"role": "system", "content": self.text()})
        turns = self.random.choice([1, 1, 2, 3, 6])
        for turn in range(turns):
            messages.append({"role": "user", "content": self.text()})
            if self.maybe(0.2):
                call = {"role": "assistant", "content": self.random.choice(["", self.text()])}
                call["tool_calls"] = [
                    {
                        "id": "abcdef123",
                        "type": "function",
                        "function": {"name": "search", "arguments": self.object() if self.maybe(0.7) else "{}"},
                    }
                    for _ in range(self.random.choice([1, 1, 1, 2]))
                ]
                if self.maybe(0.3):
                    call["reasoning_content"] = self.text()
                messages.append(call)
                for _ in call["tool_calls"]:
                    messages.append(
                        {"role": "tool", "tool_call_id": "abcdef123", "name": "search", "content": self.text()}
                    )
            answer = {"role": "assistant", "content": self.text()}
            if self.maybe(0.15):
                answer["content"] = f"<think>\n{self.text()}\n</think>\n\n{self.text()}"
            if self.maybe(0.2):
                answer["reasoning_content"] = self.text()
            if turn < turns - 1 or self.maybe(0.6):
                messages.append(answer)
        return messages

    def messages(self) -> list[dict[str, Any]]:
        if self.maybe(0.6):
            return self.tame_messages()
        messages = []
        if self.maybe(0.4):
            messages.append(self.message(self.random.choice(["system", "system", "system", "developer"])))
        for _ in range(self.random.choice([0, 1, 1, 2, 2, 3, 5])):
            if self.maybe(0.85):
                messages.append(self.message("user"))
                if self.maybe(0.25):
                    call = self.message("assistant")
                    call["tool_calls"] = [self.tool_call() for _ in range(self.random.choice([1, 1, 2]))]
                    messages.append(call)
                    for _ in range(self.random.choice([1, 1, 2])):
                        messages.append(self.message("tool"))
                messages.append(self.message("assistant"))
            else:
                messages.append(
                    self.message(self.random.choice(["user", "assistant", "tool", "system", "ipython", "odd"]))
                )
        if not messages or self.maybe(0.3):
            messages.append(self.message("user"))
        return messages

    def request(self) -> dict[str, Any]:
        """The arguments of one rendering."""
        request: dict[str, Any] = {"messages": self.messages(), "add_generation_prompt": self.maybe(0.5)}
        if self.maybe(0.35):
            request["tools"] = [self.tool() for _ in range(self.random.choice([0, 1, 1, 2, 3]))]
        if self.maybe(0.1):
            request["documents"] = [
                {"title": self.text(3), "text": self.text()} for _ in range(self.random.randrange(3))
            ]
        kwargs: dict[str, Any] = {}
        for name in (
            "enable_thinking",
            "thinking",
            "preserved_thinking",
            "is_training",
            "clear_thinking",
            "keep_thinking",
        ):
            if self.maybe(0.12):
                kwargs[name] = self.random.choice([True, False, False, None])
        choices = {
            "reasoning_effort": ["low", "high", "none", "medium"],
            "model_identity": ["You are X."],
            "builtin_tools": [["python"], ["browser", "python"], []],
            "date_string": ["26 Jul 2024"],
            "custom_tools": [[{"name": "x", "parameters": {}}]],
            "tools_in_user_message": [True, False],
            "safety_mode": ["STRICT", "NONE"],
            "xml_tools": [[]],
            "thinking_budget": [0, 512],
            "bos_token": ["<bos>", ""],
        }
        for name, values in choices.items():
            if self.maybe(0.05):
                kwargs[name] = self.random.choice(values)
        if kwargs:
            request["kwargs"] = kwargs
        return request
