"""The program behind ``managedconsumer demo``, as an example of a whole job: Kafka, Spark, Parquet, and a proof.

``run`` has the steps in their order. ``writer`` writes page views into ``topic``, ``query`` counts them with Spark,
``counter`` counts them once more with a plain consumer, and ``proof`` compares. The package has it as
``managedconsumer.cli._demo``, which is a symbolic link in the repository and a folder in the wheel.
"""
