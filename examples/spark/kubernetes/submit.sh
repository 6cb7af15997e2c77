#!/bin/sh
# Submit copy_orders.py to Kubernetes in cluster mode. Arguments are further ones of spark-submit.
# The objects in cluster.yaml exist, and so does the secret orders-nats:
#   kubectl --namespace orders create secret generic orders-nats --from-file=orders.creds --from-file=ca.pem
set -eu
here=$(cd "$(dirname "$0")" && pwd)

exec "${SPARK_HOME:?}/bin/spark-submit" \
  --master "${MASTER:-k8s://https://kubernetes.example.com:6443}" \
  --deploy-mode cluster \
  --name copy-orders \
  --conf spark.kubernetes.namespace=orders \
  --conf spark.kubernetes.container.image="${IMAGE:-registry.example.com/orders:1}" \
  --conf spark.kubernetes.authenticate.driver.serviceAccountName=orders \
  --conf spark.kubernetes.driver.podTemplateFile="$here/pod.yaml" \
  --conf spark.kubernetes.executor.podTemplateFile="$here/pod.yaml" \
  --conf spark.kubernetes.submission.waitAppCompletion=false \
  --conf spark.executor.instances=2 \
  --conf spark.driver.memory=1g \
  --conf spark.executor.memory=1g \
  --conf spark.kubernetes.memoryOverheadFactor=0.4 \
  --conf spark.kubernetes.driver.secrets.orders-nats=/etc/orders \
  --conf spark.kubernetes.executor.secrets.orders-nats=/etc/orders \
  --conf spark.kubernetes.driver.volumes.persistentVolumeClaim.checkpoints.options.claimName=orders-checkpoints \
  --conf spark.kubernetes.driver.volumes.persistentVolumeClaim.checkpoints.mount.path=/data/checkpoints \
  --conf spark.kubernetes.executor.volumes.persistentVolumeClaim.checkpoints.options.claimName=orders-checkpoints \
  --conf spark.kubernetes.executor.volumes.persistentVolumeClaim.checkpoints.mount.path=/data/checkpoints \
  "$@" \
  local:///opt/orders/copy_orders.py \
  tls://nats.example.com:4222 /data/checkpoints/copy-orders --follow \
  --option credentialsFile=/etc/orders/orders.creds --option tlsCa=/etc/orders/ca.pem
