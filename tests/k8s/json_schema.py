"""JSON schemas of Kubernetes resources."""

import functools
import json

import jsonschema
import kubernetes_validate

KUBERNETES = "1.30"


# it would read megabytes for each document
kubernetes_validate.utils.schema_contents = functools.cache(kubernetes_validate.utils.schema_contents)


def validate(document):
    """Raise an error unless a document is one of Kubernetes' own resources, without unknown fields."""
    kubernetes_validate.validate(document, KUBERNETES, strict=True)


def strict(schema):
    """The schema, but unknown fields are errors: the API server would drop them silently."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: strict(value) for key, value in schema.items()}
    if isinstance(made.get("properties"), dict) and not made.get("x-kubernetes-preserve-unknown-fields"):
        made.setdefault("additionalProperties", False)
    return made


def validator(path):
    """A validator by the strict schema of a custom resource in a file, without the check of the schema itself, which
    takes seconds."""
    # Go's regular expressions may change their flags anywhere, Python's at the start only
    made = strict(json.loads(path.read_text().replace("^(?i)", "(?i)^")))
    made["properties"]["metadata"] = {"type": "object"}
    return jsonschema.validators.validator_for(made)(made)
