"""Random JSON Schemas of the kinds that tools and structured answers use."""

import random

PATTERNS = ["^[a-z]{2,8}$", "^[A-Z]{3}-[0-9]{4}$", "^\\d{3}\\.\\d{2}$", "^(red|green|blue)$", "^\\S{1,12}$", "ab+c",
            "^https://[a-z]+\\.example/", "^[^\\s\"]{3,6}$", "^\\w+@\\w+\\.com$", "^(?:x|y){1,4}z?$", "^[\\u00c0-\\u00ff]{2}$"]
FORMATS = ["date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"]
NAMES = ["name", "id", "value", "items", "kind", "a b", "quote\"d", "\u00e9t\u00e9", "x/y", "naming"]


def scalar(draw):
    kind = draw.randrange(16)
    if kind == 0:
        return {"type": "string"}
    if kind == 1:
        low = draw.randrange(5)
        return {"type": "string", "minLength": low, "maxLength": low + draw.randrange(12)}
    if kind == 2:
        return {"type": "string", "pattern": draw.choice(PATTERNS)}
    if kind == 3:
        return {"type": "string", "format": draw.choice(FORMATS)}
    if kind == 4:
        low = draw.randrange(-10**draw.randrange(1, 9), 10**draw.randrange(1, 9))
        return {"type": "integer", "minimum": low, "exclusiveMaximum": low + 1 + draw.randrange(10**draw.randrange(1, 9))}
    if kind == 5:
        low = round(draw.uniform(-100, 100), draw.randrange(4))
        return {"type": "number", "minimum": low, "maximum": round(low + draw.uniform(0.5, 50), draw.randrange(2, 5))}
    if kind == 6:
        return {"type": "number", draw.choice(["exclusiveMinimum", "exclusiveMaximum"]): draw.randrange(-3, 4)}
    if kind == 7:
        return {"enum": draw.sample(["a", "b\n\"c", 1, -2.5, None, True, [1, {"k": "v"}], {}, "\u20ac"], draw.randrange(1, 6))}
    if kind == 8:
        return {"const": draw.choice(["fixed", 7, None, {"deep": [True, "x"]}])}
    if kind == 9:
        return {"type": draw.choice(["boolean", "null", "integer", "number"])}
    if kind == 10:
        return {"type": ["string", "null"], "maxLength": 4, "description": "perhaps"}
    if kind == 11:
        return {"type": "number", "exclusiveMinimum": draw.choice([-1e12, 1e-6, 1 / 3]), "exclusiveMaximum": draw.choice([2 / 3, 1e12, 1e15])}
    if kind == 12:
        return {"type": "string", "pattern": draw.choice(["^[a-z]+$", "^\\w*$"]), "minLength": 2, "maxLength": draw.randrange(2, 30)}
    if kind == 13:
        return {"allOf": [{"type": ["integer", "null"], "minimum": draw.randrange(-9, 3)}, {"type": "number", "minimum": 0, "maximum": 20}]}
    if kind == 14:
        return {"type": "integer", "minimum": draw.choice([-2**63, 0, 1e9]), "maximum": draw.choice([2**53 - 1, 2**63 - 1, 1e300])}
    return {"type": "integer", "minimum": -50, "maximum": 50, "multipleOf": draw.choice([1, 2, 5, 7])}


def nested(draw, depth):
    if depth == 0 or draw.random() < 0.3:
        return scalar(draw)
    kind = draw.randrange(9)
    inner = lambda: nested(draw, depth - 1)
    if kind <= 3:
        names = draw.sample(NAMES, draw.randrange(1, 5))
        schema = {"type": "object", "properties": {name: inner() for name in names},
                  "required": draw.sample(names, draw.randrange(len(names) + 1))}
        more = draw.randrange(4)
        if more == 0:
            schema["additionalProperties"] = False
        elif more == 1:
            schema["additionalProperties"] = scalar(draw)
        return schema
    if kind == 4:
        schema = {"type": "array", "items": inner(), "minItems": draw.randrange(3)}
        return schema | ({"maxItems": schema["minItems"] + draw.randrange(4)} if draw.random() < 0.7 else {})
    if kind == 5:
        return {"type": "array", "prefixItems": [inner(), inner()], "items": draw.choice([False, {"type": "null"}]), "minItems": 2}
    if kind == 6:
        return {"anyOf": [inner(), inner(), {"type": "null"}]}
    if kind == 7:
        base = {"type": "object", "properties": {"kind": {"type": "string"}, "value": inner()}, "required": ["kind", "value"]}
        return {"oneOf": [{"allOf": [base, {"properties": {"kind": {"const": name}}}]} for name in ("first", "second")]}
    return {"oneOf": [{"type": "object", "properties": {"kind": {"const": name}, "value": inner()}, "required": ["kind", "value"]}
                      for name in ("first", "second")]}


def random_schema(seed):
    draw = random.Random(seed)
    schema = nested(draw, 3)
    if draw.random() < 0.2:
        definition = {"type": "object", "properties": {"value": schema, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
                      "required": ["value"]}
        return {"$defs": {"node": definition}, "$ref": "#/$defs/node"}
    if draw.random() < 0.2:
        return {"$defs": {"part": schema}, "type": "object", "required": ["one", "two"],
                "properties": {"one": {"$ref": "#/$defs/part"}, "two": {"allOf": [{"$ref": "#/$defs/part"}]}}}
    return schema
