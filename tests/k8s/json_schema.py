"""JSON schemas of Kubernetes resources."""

import jsonschema


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


def validator(schema):
    """A validator by a strict schema of a custom resource, without the check of the schema itself, which takes
    seconds."""
    made = strict(schema)
    made["properties"]["metadata"] = {"type": "object"}
    return jsonschema.validators.validator_for(made)(made)
