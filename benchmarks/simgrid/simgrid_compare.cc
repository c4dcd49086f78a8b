// The same patterns over the same links here and in SimGrid: both times of the slowest rank, and what each
// took to say so.
//
//   simgrid_compare                                        a table
//   simgrid_compare PATTERN NODES GPUS_PER_NODE GPUS_PER_NIC NODES_PER_LEAF OVERSUBSCRIPTION SPREAD
//                                                          one row: "ns_here ns_simgrid s_here s_simgrid"
//
// PATTERN is ring or pairwise. Latencies are 0: SimGrid keeps a sender until its message has arrived.
// SimGrid's network model is CM02 without TCP's windows and correction factors, which is max-min sharing too.
// An actor for each rank.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include <simgrid/s4u.hpp>

#include "sim/cost/network/pattern.h"

namespace cp::sim {
namespace {

namespace s4u = simgrid::s4u;

constexpr double kBytes = 1 << 30;

struct Scenario {
  std::string pattern;
  int nodes, gpus_per_node, gpus_per_nic, nodes_per_leaf;
  double oversubscription, spread;
};

struct Row {
  double ns_here, ns_simgrid, s_here, s_simgrid;
};

Cluster cluster_of(const Scenario& scenario) {
  Cluster cluster;
  cluster.nodes = scenario.nodes;
  cluster.node = {
      .gpus = scenario.gpus_per_node, .nvlink_domain = scenario.gpus_per_node, .nvlink_gbps = 450};
  cluster.network = {.nic_gbps = 50,
                     .gpus_per_nic = scenario.gpus_per_nic,
                     .nodes_per_leaf = scenario.nodes_per_leaf,
                     .oversubscription = scenario.oversubscription};
  return cluster;
}

class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }

 private:
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

// The pairs of ranks that send to each other.
template <class Visit>
void for_each_pair(bool ring, int n, const Visit& visit) {
  for (int source = 0; source < n; ++source) {
    for (int step = 1; step <= (ring ? 1 : n - 1); ++step) visit(source, (source + step) % n);
  }
}

void build_platform(const Topology& topology, bool ring) {
  s4u::NetZone* zone = s4u::create_full_zone("cluster");
  std::vector<s4u::Host*> hosts;
  for (int gpu = 0; gpu < topology.num_gpus(); ++gpu)
    hosts.push_back(zone->create_host("gpu " + std::to_string(gpu), 1e9));
  std::vector<s4u::Link*> links;
  for (LinkId link = 0; link < static_cast<LinkId>(topology.num_links()); ++link) {
    const double rate = topology.capacities()[static_cast<std::size_t>(link)] * 1e9;
    links.push_back(zone->create_link(topology.name(link), rate)->set_latency(0.0)->seal());
  }
  for_each_pair(ring, topology.num_gpus(), [&](int source, int target) {
    std::vector<s4u::LinkInRoute> route;
    const Route ours = topology.route(source, target);
    for (const LinkId link : ours.links()) route.emplace_back(links[static_cast<std::size_t>(link)]);
    zone->add_route(hosts[static_cast<std::size_t>(source)]->get_netpoint(),
                    hosts[static_cast<std::size_t>(target)]->get_netpoint(), nullptr, nullptr, route, false);
  });
  zone->seal();
}

// In step k a rank sends to one and receives from one, and goes on when both are over.
void act(int rank, int n, bool ring, std::vector<s4u::Mailbox*>& boxes) {
  static int payload = 0;
  const auto part = static_cast<std::uint64_t>(kBytes / n);
  s4u::Mailbox* own = boxes[static_cast<std::size_t>(rank)];
  for (int step = 1; step < n; ++step) {
    const int to = (rank + (ring ? 1 : step)) % n;
    s4u::CommPtr sent = boxes[static_cast<std::size_t>(to)]->put_async(&payload, part);
    int* received = nullptr;
    s4u::CommPtr got = own->get_async<int>(&received);
    sent->wait();
    got->wait();
  }
}

Row compare(const Scenario& scenario, const char* program) {
  const bool ring = scenario.pattern == "ring";
  const Cluster cluster = cluster_of(scenario);
  const Topology topology(cluster, {.spread = scenario.spread, .seed = 1});
  const int n = topology.num_gpus();
  std::vector<int> gpus(static_cast<std::size_t>(n));
  std::iota(gpus.begin(), gpus.end(), 0);
  Row row{};
  const Stopwatch here;
  const PatternResult result = run_pattern(
      topology, cluster.transfer, gpus,
      {ring ? PatternKind::ring_all_gather : PatternKind::pairwise_all_to_all, kBytes}, Fidelity::simulated);
  row.s_here = here.seconds();
  row.ns_here = *std::max_element(result.finish_ns.begin(), result.finish_ns.end());

  std::vector<std::string> args = {program,
                                   "--log=root.thres:warning",
                                   "--cfg=network/model:CM02",
                                   "--cfg=network/TCP-gamma:0",
                                   "--cfg=network/crosstraffic:0",
                                   "--cfg=network/weight-S:0",
                                   "--cfg=network/bandwidth-factor:1.0",
                                   "--cfg=network/latency-factor:1.0",
                                   "--cfg=contexts/stack-size:64",
                                   "--cfg=contexts/guard-size:0"};
  std::vector<char*> pointers;
  for (std::string& arg : args) pointers.push_back(arg.data());
  auto count = static_cast<int>(pointers.size());
  pointers.push_back(nullptr);
  s4u::Engine engine(&count, pointers.data());
  build_platform(topology, ring);
  std::vector<s4u::Mailbox*> boxes;
  for (int rank = 0; rank < n; ++rank) boxes.push_back(s4u::Mailbox::by_name(std::to_string(rank)));
  for (int rank = 0; rank < n; ++rank) {
    s4u::Actor::create("rank " + std::to_string(rank), s4u::Host::by_name("gpu " + std::to_string(rank)),
                       [=, &boxes] { act(rank, n, ring, boxes); });
  }
  const Stopwatch there;
  engine.run();
  row.s_simgrid = there.seconds();
  row.ns_simgrid = s4u::Engine::get_clock() * 1e9;
  return row;
}

// SimGrid has one engine to a process.
Row compare_in_child(const Scenario& scenario, const char* program) {
  int pipe_ends[2];
  if (pipe(pipe_ends) != 0) std::abort();
  const pid_t child = fork();
  if (child == 0) {
    const Row row = compare(scenario, program);
    const bool written = write(pipe_ends[1], &row, sizeof row) == static_cast<ssize_t>(sizeof row);
    std::_Exit(written ? 0 : 1);
  }
  close(pipe_ends[1]);
  Row row{};
  if (read(pipe_ends[0], &row, sizeof row) != static_cast<ssize_t>(sizeof row)) std::abort();
  close(pipe_ends[0]);
  waitpid(child, nullptr, 0);
  return row;
}

void table(const char* program) {
  struct Named {
    const char* links;
    int gpus_per_nic, nodes_per_leaf;
    double oversubscription, spread;
  };
  const int large = 1 << 20;
  std::printf("%-8s %5s %-24s %10s %10s %9s %8s %9s %6s\n", "pattern", "gpus", "links", "ms", "SimGrid",
              "apart", "s", "SimGrid", "ratio");
  for (const std::string pattern : {"ring", "pairwise"}) {
    for (const int nodes : {16, 128}) {
      for (const Named& named : {Named{"even", 1, large, 1, 0}, Named{"shared NICs, 2:1 leaves", 2, 8, 2, 0},
                                 Named{"uneven", 1, large, 1, 0.1}}) {
        if (pattern == "pairwise" && nodes == 128 && named.spread > 0)
          continue;  // takes SimGrid more than 7 minutes
        std::fflush(stdout);
        const Row row = compare_in_child({pattern, nodes, 8, named.gpus_per_nic, named.nodes_per_leaf,
                                          named.oversubscription, named.spread},
                                         program);
        std::printf("%-8s %5d %-24s %10.4f %10.4f %8.4f%% %8.4f %9.3f %5.0fx\n", pattern.c_str(), 8 * nodes,
                    named.links, row.ns_here * 1e-6, row.ns_simgrid * 1e-6,
                    100 * std::abs(row.ns_here / row.ns_simgrid - 1), row.s_here, row.s_simgrid,
                    row.s_simgrid / row.s_here);
      }
    }
  }
}

}  // namespace
}  // namespace cp::sim

int main(int argc, char** argv) {
  if (argc == 1) {
    cp::sim::table(argv[0]);
    return 0;
  }
  if (argc != 8) {
    std::fprintf(stderr, "%s: takes no arguments, or 7; see the head of its source\n", argv[0]);
    return 2;
  }
  const cp::sim::Row row =
      cp::sim::compare({argv[1], std::atoi(argv[2]), std::atoi(argv[3]), std::atoi(argv[4]),
                        std::atoi(argv[5]), std::atof(argv[6]), std::atof(argv[7])},
                       argv[0]);
  std::printf("%.17g %.17g %.3f %.3f\n", row.ns_here, row.ns_simgrid, row.s_here, row.s_simgrid);
  return 0;
}
