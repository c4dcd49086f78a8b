// The numbers of nccl_model.cc, for it and pair_rate.cc alone.
//
// Inside of an NVLink domain scripts/nccl_fit.py fitted them to the tables that nccl_gpus.csv is of: A100
// with NCCL 2.27.3, H100 and B200 with 2.29.2; two, four and eight GPUs, 512 B to 512 MiB, f16, 756 rows.
// Over PCIe the same search found them for RTX PRO 6000 with 2.29.2, between nodes for nccl_tests.csv, two
// nodes of eight B200. The tables nccl_algebra_* of cpsim validate score the GPUs that were left out (H200,
// B300, GB200, GB300, L40S). Larger groups than eight were not measured.
//
// Units: a latency is a multiple of the smallest send/recv's time inside of a node (`_hop` of the one between
// nodes); a time for each byte is a multiple of the link's (1 / its rate); bytes are bytes.
#pragma once

namespace cp::sim::nccl {

struct Latency {
  double base = 0, step = 0;  // before the first step, and of each
};

// Rings. In LL the first kilobytes of each member cost kLlFill more: NCCL takes more threads and channels as
// blocks grow.
constexpr Latency kLl = {0.721, 0.122}, kLl128 = {1.62, 0.359}, kSimple = {2.59, 0.103};
constexpr double kLlFill = 0.247, kLlFillBytes = 2610;
constexpr double kLlTime = 3.38, kLl128Time = 2.17, kSimpleTime = 1.37;
constexpr double kSimpleFillUs = 16.3, kSimpleFillBytes = 17.7e6;
// The copy of a member's own block, which an all-gather and a reduce-scatter have beside what the links
// carry.
constexpr double kOwnBlock = 0.378;

// The tree of NCCL's tuner reaches this part of a ring's rate: 0.92 and 0.85 of it, twice, up and down.
constexpr double kTreeShare = 0.92 * 0.85;

// What the channels of NVLS, and those of all pairs together, move at best, where a GPU has kMostAtGbps of
// NVLink: less than the links. More links mean more channels, but fewer than in proportion: times (links /
// kMostAtGbps)^kMostGrowth.
constexpr double kMostAtGbps = 900, kMostGrowth = 0.3;

// NVLS: the switch adds up and gives to all.
constexpr double kNvls = 4.01, kNvlsFillUs = 63, kNvlsFillBytes = 15.4e6, kNvlsTime = 1.7,
                 kNvlsMostGbps = 434;

// Send/recv and all-to-all: LL up to some size, which one channel of a peer moves; then Simple. kPairMostGbps
// includes the own block.
constexpr double kPairLl = 1.02, kPairSimple = 1.71, kPairPeer = 0.0431;
constexpr double kPairLlGbps = 6.51, kPairFillUs = 17.1, kPairFillBytes = 24.2e6;
constexpr double kPairTime = 1.43, kPairOwn = 0.36, kPairMostGbps = 680;

// Over PCIe.
constexpr Latency kPcieLl = {0.71, 0.237}, kPcieSimple = {1.89, 0.481};
constexpr double kPcieLlTime = 2.68, kPcieTime = 1.29;
constexpr double kPciePairSimple = 1.62, kPciePairPeer = 0.13, kPciePairLlGbps = 4.81, kPciePairTime = 1.23;

// Between nodes: of a step through the network by LL and Simple; of the NICs' rate.
constexpr double kLlHop = 0.767, kSimpleHop = 1.64;
constexpr double kRingShare = 0.807, kNvlsShare = 0.957;
constexpr double kNetworkLlTime = 42;  // of the NICs' time, at kRingShare
constexpr double kNetworkFillHops = 12, kNetworkFillBytes = 8.71e6;
constexpr double kPairBase = 2.29, kPairFillHops = 5.5, kPairNetworkFillBytes = 2.18e6;
// One channel for each peer leaves the NIC half idle, whatever the number of peers; and a channel has a rate
// of its own.
constexpr double kPairShare = 0.718, kPairShareOfChannel = 0.45, kChannelGbps = 9.8;

}  // namespace cp::sim::nccl
