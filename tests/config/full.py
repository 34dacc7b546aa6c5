"""A configuration that says something about everything, for tests to read, change and break."""

from __future__ import annotations

FULL = """\
name: everything
description: all sections
labels: [a, b]
workspace: w
project: p
entrypoint: [python3, train.py, --flag]
data:
  path: /data
  secrets: {token: hush, nested: [hush]}
hyperparameters:
  global_batch_size: 64
  lr: {type: log, minval: -5, maxval: -1.5, base: 10, count: 3}
  units: {type: int, minval: 1, maxval: 9}
  dropout: {type: double, minval: 0, maxval: 0.5}
  kind: {type: categorical, vals: [a, 1, null, {x: 1}]}
  fixed: {type: const, val: null}
  layers: [1, 2, {a: b}]
  empty: {}
  optimizer:
    name: adam
    beta: {type: double, minval: 0.8, maxval: 0.99}
searcher:
  name: adaptive_asha
  metric: accuracy
  smaller_is_better: false
  max_trials: 16
  max_length: {epochs: 9}
  mode: aggressive
  divisor: 3
  max_rungs: 4
  bracket_rungs: [2, 3]
  max_concurrent_trials: 4
  source_trial_id: 3
resources:
  slots_per_trial: 8
  resource_pool: gpu
  max_slots: 16
  weight: 2.5
  priority: 50
  is_single_node: false
  shm_size: 1.5 gb
  devices: ["/dev/a:/dev/b:rw", {host_path: /c, container_path: /d}]
  native_parallel: true
  agent_label: x
environment:
  image: {cpu: a, gpu: b}
  environment_variables:
    cpu: [A=1]
    cuda: ["API_KEY=a=b\\nc", "B='x'"]
    gpu: [G=1]
  ports: {http: 80}
  proxy_ports: [{proxy_port: 80, proxy_tcp: true}]
  force_pull_image: true
  registry_auth: {username: u, password: hush}
  add_capabilities: [X]
  drop_capabilities: [Y]
  pod_spec: {spec: {containers: []}}
bind_mounts: [{host_path: /a, container_path: b, read_only: true}]
checkpoint_storage:
  type: s3
  bucket: b
  access_key: hush
  secret_key: hush
  endpoint_url: https://user:hush@host/
  prefix: a/b
  save_experiment_best: 2
checkpoint_policy: all
min_validation_period: {epochs: 1}
min_checkpoint_period: {batches: 100}
perform_initial_validation: true
records_per_epoch: 50000
scheduling_unit: 10
max_restarts: 2
restart_repeated_failures: true
preemption_timeout: 600
optimizations: {aggregation_frequency: 2, mixed_precision: O1}
profiling: {enabled: true, begin_on_batch: 1, end_after_batch: 9}
reproducibility: {experiment_seed: 7}
log_policies:
  - {name: oom, pattern: ".*out of memory.*", action: cancel_retries}
  - {name: node, pattern: ".*bad node.*", action: {type: exclude_node}}
  - name: CUDA OOM
retention_policy: {log_retention_days: 30}
integrations: {webhooks: {webhook_id: [1]}}
security: {kerberos: {config_file: f}}
tensorboard_storage: {type: shared_fs}
data_layer: {a: b}
arguments: {flags: {separator: _, booleans: --flag=true}}
debug: true
slurm:
  slots_per_node: 4
  gpu_type: a100
  sbatch_args: ["--mem=4G", "--exclusive"]
  account: me
  qos: high
  time: 4:00:00
  constraint: fast&big
  setup: ["source /etc/profile", "export WANDB_API_KEY=hush"]
  modules: [cuda/12, gcc]
  container_prefix: [apptainer, exec, image.sif]
  mpi: pmix
  on_preempt: requeue
  signal_lead: 300
  slot_type: cuda
  network_interface: ib0,eth0
  trials_per_job: 2
  budget: {slot_hours: 100}
pbs: {slots_per_node: 2, pbsbatch_args: [-q]}
"""
