"""Model `fleet`: the workers of many hosts on one store, in virtual seconds. `policy` decides all that they decide.

`board` has the workers' rows, `worker` what one worker does with them, `offered` the bytes that shards are offered,
`outages` destinations that fail, `world` the time, the locks and the hosts, and `model` the script's form.
"""
