"""A DAG of Airflow 3 that runs copy_orders.py every hour. docs/howto/spark-in-airflow.md explains it.

Airflow needs neither PySpark nor jsclient: both are in an environment of their own, /opt/orders or ORDERS_HOME.
"""

import os
from datetime import timedelta

import pendulum
from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

HOME = os.environ.get("ORDERS_HOME", "/opt/orders")
SETTINGS = {
    "SPARK_MASTER": os.environ.get("SPARK_MASTER", "local[2,4]"),
    "NATS_URL": os.environ.get("NATS_URL", "nats://127.0.0.1:4222"),
    "CHECKPOINTS": os.environ.get("CHECKPOINTS", "/data/checkpoints"),
    "PROGRAM": os.environ.get("ORDERS_PROGRAM", f"{HOME}/copy_orders.py"),
    "PYSPARK_PYTHON": f"{HOME}/bin/python",
    "PYSPARK_DRIVER_PYTHON": f"{HOME}/bin/python",
}

with DAG(
    "copy_orders",
    schedule="@hourly",
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,  # a run reads all that is new, however many hours that are
    max_active_runs=1,  # a checkpoint is for one driver
    default_args={"retries": 3, "retry_delay": timedelta(minutes=1)},
):
    BashOperator(
        task_id="copy",
        # exec: the signal of a timeout reaches spark-submit, and not a shell around it.
        bash_command=(
            f'exec {HOME}/bin/spark-submit --master "$SPARK_MASTER" "$PROGRAM" "$NATS_URL" "$CHECKPOINTS/copy-orders"'
        ),
        env=SETTINGS,
        append_env=True,
        execution_timeout=timedelta(minutes=50),
    )
