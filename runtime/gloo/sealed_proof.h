// The proof that both ends of a connection between two ranks know the job's token, without sending it.
//
//   who connects   -> who listens    hello: the two ranks and a nonce
//                  <-                a nonce of its own
//                  ->                the proof of who connects
//                  <-                the proof of who listens; from here on the connection is the ranks'
//
// All four have fixed sizes, so that neither end reads a byte of what comes after. A stranger who connects
// learns nothing that the token could be guessed from: who listens proves itself last. A proof is HMAC-SHA256
// over the end that makes it, both ranks and both nonces, by a key made of the token, the job, the group and
// the listener's own random ticket: a recorded exchange, one of another pair, another group or another job,
// and one that is sent back do not hold.
//
// The exchange says who is at the other end. What is sent later is neither encrypted nor sealed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/rendezvous/authentication.h"
#include "shared/base/types.h"

namespace cp::runtime {

enum class SealedEnd : std::uint8_t { connects, listens };

struct SealedLink {
  Rank connects = 0, listens = 0;
  std::string nonce_of_connecting, nonce_of_listening;  // kNonceBytes each
};

std::string sealed_key(std::string_view token, std::string_view job_id, std::string_view group,
                       std::string_view ticket);

// What the end proves itself by.
constexpr std::size_t kProofBytes = 32;
std::string sealed_proof(const std::string& key, SealedEnd by, const SealedLink& link);

// kHelloBytes, of the link's ranks and the nonce of who connects; and back. Nothing for bytes that are none.
constexpr std::size_t kHelloBytes = 8 + 2 * 4 + kNonceBytes;
std::string sealed_hello(const SealedLink& link);
std::optional<SealedLink> parse_sealed_hello(std::string_view bytes);

}  // namespace cp::runtime
