// A cluster as the timeline sees it: one GPU, how the GPUs of a node are joined, how the nodes are, and what
// was measured on it. Plain data; every number comes from a preset or a user's file, where its source stands
// beside it.
//
// Rates are of one GPU and one direction unless they say otherwise. 1 GB/s = 1e9 bytes a second.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "sim/cost/cluster/curve.h"
#include "sim/cost/cluster/rates.h"
#include "sim/cost/cluster/source.h"

namespace cp::sim {

struct Gpu {
  std::string name;
  double tflops_16 = 0;   // dense f16 and bf16 products, at the boost clock
  double tflops_f32 = 0;  // f32 outside of tensor cores
  double tflops_fp8 = 0;  // 0: has none
  double hbm_gbps = 0;    // GB/s
  double memory_gib = 0;
  double usable_memory_gib = 0;  // what is left to tensors and allocator
  double power_limit_w = 0;
  // The clock that long products keep under the power limit, as a share of the boost clock, in (0, 1]. It is
  // for a power limit below the usual one of this GPU; what products lose at the usual limit is part of
  // matmul_efficiency.
  double sustained_clock = 1;
  double kernel_launch_us = 0;  // from one kernel's end to the next one's beginning in a stream
  bool operator==(const Gpu&) const = default;
};

struct Node {
  int gpus = 8;
  // GPUs that reach each other by NVLink: all of a node, or of several (NVL72); 1: none
  int nvlink_domain = 8;
  double nvlink_gbps = 0;  // of a GPU into the switch; 0 without NVLink
  bool nvls = false;       // reductions inside of the switch
  double pcie_gbps = 0;    // of a GPU into its PCIe switch, or its root port
  int gpus_per_pcie_switch = 1;
  double pcie_root_gbps = 0;  // of a PCIe switch towards the others; shared by its GPUs
  bool pcie_peers = true;     // GPUs of one PCIe switch send to each other; else by way of the host's memory
  // The limit of what the host moves for all transfers of a node together that go from one PCIe switch to
  // another, or through its memory. 0: no limit but the switches' own.
  double pcie_host_gbps = 0;
  // The rate between a GPU and the host's memory, each way, if that is not PCIe. 0: it is PCIe.
  double host_link_gbps = 0;
  // What the host's processors can read and write in their memory, together, for example in an optimizer
  // step. 0: as much as the GPUs' links to it.
  double host_memory_gbps = 0;
  int nvlink_links = 0;     // of a GPU; nvlink_gbps is of all together. 0: unknown, or none
  int nvlink_switches = 0;  // that a domain's links are spread over; 0: unknown, or none
  bool operator==(const Node&) const = default;
};

struct Network {
  double nic_gbps = 0;   // of one NIC
  int gpus_per_nic = 1;  // that share it
  bool rails = true;     // NIC i of every node hangs on leaf i; else all NICs of a node on one leaf
  int nodes_per_leaf = 1 << 20;
  double oversubscription = 1;  // of a leaf: its ports downwards over those upwards, >= 1
  double latency_us = 0;  // of a message between nodes, before its first byte arrives; a curve includes it
  bool sharp = false;     // reductions inside of the network's switches
  bool operator==(const Network&) const = default;
};

// The rate of one transfer between two GPUs, over its size in bytes. It is the bytes divided by the whole
// time, so latency is included; the time never falls as bytes grow. transfer_gbps() says what holds below the
// first point. If a curve is empty, a transfer takes the latency and then runs at the link's rate.
struct TransferCurves {
  Curve intra_node, inter_node;
  double intra_node_latency_us = 0;
  // The share of its rate that a transfer keeps while a kernel runs on its source or its target, in (0, 1].
  double beside_kernels = 1;
  bool operator==(const TransferCurves&) const = default;
};

// The time of a collective of all GPUs of a system, measured as nccl-tests does. It never falls as bytes
// grow.
struct CollectiveCurve {
  std::string
      operation;  // all_gather, reduce_scatter, all_reduce, all_to_all, exchange (nccl-tests: sendrecv)
  int gpus = 0, nodes = 1;
  int channels_per_net_peer = 0;  // 0: the library's own choice
  Curve time_us;                  // over nccl-tests' size in bytes
  bool operator==(const CollectiveCurve&) const = default;
};

// The rate that attention kernels reach, over the pairs of the whole kernel (batch x query heads x allowed
// pairs). It is in TFLOP/s of the pairs that the mask allows: forward 4 flops for each pair and head
// dimension (two products), backward 10 (five products).
struct AttentionCurve {
  bool backward = false, causal = false;  // causal: any mask with a diagonal
  int head_dim = 128;
  Curve tflops;
  std::string kernel = "fa2";  // whose generation was measured: "fa2", "fa3", ...
  bool operator==(const AttentionCurve&) const = default;
};

struct Cluster {
  std::string name;
  int nodes = 1;
  Gpu gpu;
  Node node;
  Network network;
  TransferCurves transfer;
  std::vector<CollectiveCurve> collectives;
  std::vector<AttentionCurve> attention;
  // What its kernels reach, fitted to tables of measured times. If the cluster has a curve of its own for a
  // kernel, the curve counts instead. Rates are scaled by tflops_16 divided by that of the GPU that was
  // measured, and by sustained_clock. Their source is that of the field "rates".
  Rates rates;
  Curve matmul_efficiency;  // of the peak, over the flops of the product; empty: the rates
  Curve fp8_efficiency;     // of tflops_fp8, with its casts; empty: the rates, else as matmul_efficiency
  Curve memory_efficiency;  // of hbm_gbps, over the bytes that a kernel moves

  using Source = sim::Source;
  std::vector<Source> sources;  // how each number and each curve is known

  int num_gpus() const { return nodes * node.gpus; }
  int node_of(int index) const { return index / node.gpus; }
  // Returns the source of a number or curve by its name ("gpu.hbm_gbps", "attention[2].tflops"), or null if
  // it has none.
  const Source* source_of(std::string_view field) const;
  bool operator==(const Cluster&) const = default;
};

// Throws InvalidInput with a line for each field at fault: its name, its value and what is allowed.
void validate_cluster(const Cluster& cluster);

}  // namespace cp::sim
