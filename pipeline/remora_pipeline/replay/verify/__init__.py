"""What arrived in Kafka, compared with what was sent, or with what the topic says of itself.

`job` is the table of contents. `kafka` freezes what is read and reads it, `records` takes the records apart, `frames`
compares them with the journals, `chain` and `alone` ask the topic itself, `series` counts for the pictures, and
`judgement` decides. All of it is DataFrames until a result is small whatever the input was: counts, 20 examples, and
distributions over fixed classes.
"""
