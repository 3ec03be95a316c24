"""Model `fleet`: the workers of many hosts on one store, in virtual seconds. `policy` decides all that they decide.

`board` has the workers' rows, `worker` what one worker does with them, `offered` the bytes that shards are offered,
`outages` destinations that fail, `world` the time, the locks and the hosts, and `model` the script's form.

It runs no `Coordinator` of `engine/ownership`: on a store in memory a virtual minute takes 3.4 s of processor time for
40 of them and 49 s for 160, and this model has 2,000 workers do an hour in 4 s.
"""
