// Collectives on flows: ring all-gather and pairwise all-to-all of 1 GiB over nodes of 8 GPUs. Items:
// messages.
//
// even: all links of a kind alike. uneven: every link's capacity times a seeded factor in [0.9, 1.1], and one
// GPU whose links have half. short: leaves of 32 nodes, oversubscribed 2:1, too. simulated: each message a
// flow; folded: where no link can be short, the waits alone; closed_form: the slowest rank's time alone.
#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "sim/cost/network/flow_network.h"
#include "sim/cost/network/pattern.h"

namespace cp::sim {
namespace {

Cluster cluster_of(int gpus) {
  Cluster cluster;
  cluster.nodes = gpus / 8;
  cluster.node = {.gpus = 8, .nvlink_domain = 8, .nvlink_gbps = 450};
  cluster.network = {.nic_gbps = 50, .gpus_per_nic = 1, .latency_us = 5};
  cluster.transfer.intra_node_latency_us = 2;
  return cluster;
}

Cluster with_short_leaves(Cluster cluster) {
  cluster.network.nodes_per_leaf = 32;
  cluster.network.oversubscription = 2;
  return cluster;
}

LinkFactors uneven(int gpus) { return {.spread = 0.1, .seed = 1, .gpus = {{gpus / 3, 0.5}}}; }

std::vector<int> first_gpus(int count) {
  std::vector<int> gpus(static_cast<std::size_t>(count));
  std::iota(gpus.begin(), gpus.end(), 0);
  return gpus;
}

void run(benchmark::State& state, const Cluster& cluster, const LinkFactors& factors, PatternKind kind,
         Fidelity fidelity) {
  const Topology topology(cluster, factors);
  const std::vector<int> gpus = first_gpus(cluster.num_gpus());
  PatternResult result;
  for (auto _ : state) {
    result = run_pattern(topology, cluster.transfer, gpus, {kind, 1 << 30}, fidelity);
  }
  state.SetItemsProcessed(state.iterations() * result.messages);
  state.counters["simulated_ms"] = *std::max_element(result.finish_ns.begin(), result.finish_ns.end()) * 1e-6;
  state.counters["folded"] = result.folded ? 1 : 0;
}

void closed_form(benchmark::State& state, PatternKind kind) {
  const Cluster cluster = cluster_of(static_cast<int>(state.range(0)));
  const Topology topology(cluster);
  const std::vector<int> gpus = first_gpus(cluster.num_gpus());
  double ns = 0;
  for (auto _ : state) ns = aggregate_ns(topology, cluster.transfer, gpus, {kind, 1 << 30});
  state.counters["simulated_ms"] = ns * 1e-6;
}

void add(const std::string& name, PatternKind kind, int gpus) {
  const auto row = [&](const std::string& how, const Cluster& cluster, const LinkFactors& factors,
                       Fidelity fidelity) {
    benchmark::RegisterBenchmark(
        (name + "/" + how + "/" + std::to_string(gpus)).c_str(),
        [=](benchmark::State& state) { run(state, cluster, factors, kind, fidelity); })
        ->Unit(benchmark::kMillisecond);
  };
  const Cluster cluster = cluster_of(gpus);
  row("even/folded", cluster, {}, Fidelity::folded);
  row("even/simulated", cluster, {}, Fidelity::simulated);
  row("uneven/simulated", cluster, uneven(gpus), Fidelity::simulated);
  row("even+short/simulated", with_short_leaves(cluster), {}, Fidelity::simulated);
  row("uneven+short/simulated", with_short_leaves(cluster), uneven(gpus), Fidelity::simulated);
  benchmark::RegisterBenchmark((name + "/closed_form").c_str(),
                               [=](benchmark::State& state) { closed_form(state, kind); })
      ->Arg(gpus)
      ->Unit(benchmark::kMillisecond);
}

const bool kAdded = [] {
  for (const int gpus : {1024, 4096}) add("ring_all_gather", PatternKind::ring_all_gather, gpus);
  add("all_to_all", PatternKind::pairwise_all_to_all, 1024);
  return true;
}();

// A flow ends and another begins, alone on its links: what a message costs at least. Items: flows.
void lonely_flows(benchmark::State& state) {
  const int links = 1024;
  FlowNetwork network(std::vector<double>(links, 50.0));
  std::vector<LinkId> link_of;
  for (LinkId link = 0; link < links; ++link) {
    network.start(0, std::vector<LinkId>{link}, 1e6 + 1e3 * link, 100);
    link_of.push_back(link);
  }
  for (auto _ : state) {
    const FlowId ended = network.end_next();
    const LinkId link = link_of[static_cast<std::size_t>(ended)];
    const FlowId begun = network.start(network.now_ns(), {&link, 1}, 1e6, 100);
    link_of[static_cast<std::size_t>(begun)] = link;
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(lonely_flows)->Name("lonely_flows/1024");

// All over one link, so that each end and each begin changes all rates. Items: flows.
void shared_flows(benchmark::State& state) {
  const LinkId link = 0;
  FlowNetwork network(std::vector<double>{50.0});
  for (int i = 0; i < state.range(0); ++i) network.start(0, {&link, 1}, 1e6 + 1e3 * i, 100);
  for (auto _ : state) {
    network.end_next();
    network.start(network.now_ns(), {&link, 1}, 1e6, 100);
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(shared_flows)->Name("shared_flows")->Arg(16)->Arg(128)->Arg(1024);

}  // namespace
}  // namespace cp::sim
