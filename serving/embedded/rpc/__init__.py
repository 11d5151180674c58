"""One file per RPC, the gRPC method around them, and the one place where an error becomes a status."""
