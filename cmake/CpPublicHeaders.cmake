# The public headers, by the component of find_package(cpsim COMPONENTS ...) that they come with: what docs/embedding.md lists and
# a program of one's own includes. Those that they include are installed too; any other header is internal, may change from one
# commit to the next, and is not installed. A test (tests/style/public_headers_test.cc) holds the two lists together.

set(CP_PUBLIC_HEADERS_core
  shared/base/dtype.h
  shared/base/error.h
  shared/base/version.h
  shared/context_parallel/attention.h
  shared/context_parallel/attention_plan.h
  shared/context_parallel/sequence.h
  shared/context_parallel/sharding.h
  shared/context_parallel/strategy.h
  shared/fully_shard/hsdp_param.h
  shared/mesh/mesh.h
  shared/mesh/parallel_dims.h
  shared/placement/layout.h
  shared/plan/builder.h
  shared/plan/check.h
  shared/plan/device.h
  shared/plan/execute.h
  shared/plan/forwarding_device.h
  shared/plan/plan.h
  shared/plan/plan_cache.h
  shared/plan/prepared_plan.h
  shared/plan/prepared_plans.h
  shared/plan/session.h
  shared/plan/target.h
  shared/plan/trace.h
  shared/redistribute/dtensor.h
  shared/redistribute/gradient.h
  shared/redistribute/lower.h
  shared/redistribute/redistribution.h
  shared/transformer/model.h
  shared/transformer/parallel_layout.h
  shared/transformer/workload.h)

set(CP_PUBLIC_HEADERS_fabric
  sim/fabric/fabric.h)

set(CP_PUBLIC_HEADERS_planner
  sim/cost/cluster/read_cluster.h
  sim/cost/cluster/read_software.h
  sim/planner/models/read_model.h
  sim/planner/search/answer.h
  sim/present/plan/answer_json.h
  sim/present/plan/headline.h
  sim/planner/search/question.h
  sim/planner/search/search.h
  sim/cost/timeline/estimate.h
  sim/cost/timeline/timeline.h)

set(CP_PUBLIC_HEADERS_runtime
  runtime/errors.h
  runtime/job.h
  runtime/nccl/nccl_backend.h
  runtime/rank_run.h
  runtime/rendezvous/client.h)
