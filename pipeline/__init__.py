"""BERT pretraining as data stages: corpus, vocabulary, shards, run, encoder.

Nothing here knows Prefect or MLflow; `flows` calls in, never the other way.
"""
