"""The page /docs: the OpenAPI document as plain HTML, which needs nothing from anywhere."""

from __future__ import annotations

from typing import Any


def describe_api(document: dict[str, Any]) -> str:
    """Every route with its parameters, answers and errors."""
    from jinja2 import Environment, PackageLoader

    environment = Environment(
        loader=PackageLoader("aoq.web"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    routes = [
        (method.upper(), path, route)
        for path, methods in document["paths"].items()
        for method, route in methods.items()
    ]
    return environment.get_template("docs.html.j2").render(
        info=document["info"],
        routes=routes,
        schemas=document["components"]["schemas"],
        kind_of=kind_of,
    )


def kind_of(schema: dict[str, Any]) -> str:
    """What a value is, in a few words.

    >>> kind_of({"type": "array", "items": {"$ref": "#/components/schemas/HitAnswer"}})
    'list of HitAnswer'
    >>> kind_of({"anyOf": [{"type": "integer", "minimum": 0}, {"type": "null"}]})
    'integer, at least 0, or nothing'
    """
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema:
        return ", or ".join(map(kind_of, schema["anyOf"]))
    if "enum" in schema:
        return " or ".join(map(str, schema["enum"]))
    kind = schema.get("type", "anything")
    if kind == "null":
        return "nothing"
    if kind == "array":
        inner: dict[str, Any] = schema.get("items") or schema["prefixItems"][0]
        return f"list of {kind_of(inner)}"
    if kind == "object" and "additionalProperties" in schema:
        return f"{kind_of(schema['additionalProperties'])} by name"
    bounds = {
        "minimum": "at least",
        "maximum": "at most",
        "minLength": "no shorter than",
        "maxLength": "no longer than",
    }
    said = [f"{words} {schema[name]:,}" for name, words in bounds.items() if name in schema]
    return ", ".join([kind, *said])
