"""Generated protobuf code: policy.proto (the contract), predict.proto (wire subset)."""
