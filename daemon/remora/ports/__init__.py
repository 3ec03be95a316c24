"""What the engine, the servers and the commands ask of the outside world, as small protocols that state their promises.

`delivery` is what delivering needs of a store, `orders` what operators have ordered, `producing` what taking events in
needs, `administration` what commands need; `store` is a whole store. `endpoint` is what delivering needs of a
destination. Every adapter is written against these docstrings, and the suites under tests/contract hold it to them.

Methods that wait never block the event loop and never wait for ever: an adapter bounds each call and raises
`StoreUnavailable` or `EndpointUnavailable`.
"""
