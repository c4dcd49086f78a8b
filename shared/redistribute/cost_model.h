// A CostModel says what a step of a redistribution costs, in microseconds. Callers pass it in; its defaults
// are documented below.
//
// For one rank and one communication step
//
//   time = step latency
//        + peer latency x rounds      all-gather, reduce-scatter, all-to-all: n-1; all-reduce: 2(n-1);
//                                     exchange, reduce_exchange: the larger of the numbers of peers that the
//                                     rank sends to and receives from
//        + sum over peers of bytes received from it / (bandwidth of the pair x efficiency of the operation)
//        + bytes read and written by pack, unpack, cast and accumulate steps / memory bandwidth
//
// Packing and unpacking. In a collective with equal counts, pack and unpack steps read and write the whole
// old or new shard. In an exchange they read and write what is packed, what arrives in staging, and the part
// that stays on the rank. A reduce_exchange pays the step latency for each round in which any rank of the
// mesh sends; it reads two and writes one element for each one that arrives, and copies each piece that it
// packs and the part that stays.
//
// Latencies are paid by every rank of both meshes. A local step costs the local latency, and its bytes read
// and written.
//
// Bandwidth. A pair of ranks has the bandwidth of the slowest mesh axis in which their coordinates differ.
//
// Bytes. A rank receives 2(n-1)/n of the buffer in an all-reduce, and (n-1) times its own result in a
// reduce-scatter; in all other operations just the bytes that move (with padding if counts must be equal: the
// time counts bytes on the wire).
//
// The time of a redistribution is the sum over its steps of the time of the slowest rank, since a step is
// over when all ranks have ended it.
#pragma once

#include <map>
#include <string>

#include "shared/base/digest.h"
#include "shared/mesh/mesh.h"

namespace cp {

struct CostModel {
  // The defaults are estimates of a current GPU cluster, and measured on none: the latencies of an NCCL
  // collective, of a grouped send/recv pair and of a kernel launch; a node of `ranks_per_node` consecutive
  // ranks joined by an NVLink-class fabric; nodes joined by one 400 Gb/s port for each GPU, 50 GB/s of which
  // 45 are assumed to arrive. They decide which chain of moves is taken as cheapest, and never whether a
  // chain is right. Give the figures of your own cluster if its links differ much.
  double step_latency_us = 10;
  double peer_latency_us = 1;
  double local_latency_us = 3;
  double memory_gbps = 2000;  // GB/s, read plus written
  double all_gather_efficiency = 0.85;
  double reduce_scatter_efficiency = 0.85;
  double all_reduce_efficiency = 0.85;
  double all_to_all_efficiency = 0.75;
  double exchange_efficiency = 0.6;  // irregular and often not pipelined: less than an all-gather
  double node_gbps = 300;            // GB/s per rank and direction, inside a node
  double network_gbps = 45;          // GB/s per rank and direction, across nodes
  int ranks_per_node = 8;
  std::map<std::string, double> axis_gbps;  // overrides by mesh axis

  // The bandwidth of a mesh axis in GB/s: the override if there is one, else that of the node if all groups
  // along the axis stay inside one node, else that of the network.
  double bandwidth_gbps(const Mesh& mesh, int axis) const;

  // Throws InvalidInput unless every figure is finite and in range (efficiencies are in (0, 1]).
  void validate() const;
};

Hasher& hash(Hasher& hasher, const CostModel& model);

}  // namespace cp
