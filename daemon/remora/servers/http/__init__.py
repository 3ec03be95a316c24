"""HTTP/1.1 as the servers speak it: requests from bytes, strictly, and answers in their order; on any event loop."""
