// Converts a Provenance from and to its protobuf form: the fields `origin` and `source` of the messages in
// quantity.proto, rates.proto and cluster.proto. No other file knows both forms.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "sim/cost/cluster/quantity.pb.h"
#include "sim/cost/cluster/source.h"

namespace cp::sim {

proto::Origin to_proto(Origin origin);
std::optional<Origin> from_proto(proto::Origin origin);  // nothing: unset

// Says which of the two is missing and what to add. Empty if both are there.
std::string provenance_error(proto::Origin origin, std::string_view source);

template <class Message>
std::string provenance_error(const Message& message) {
  return provenance_error(message.origin(), message.source());
}

// Reads the provenance of a message. A missing origin, which provenance_error() reports, is read as
// `assumed`.
template <class Message>
Provenance provenance_of(const Message& message) {
  return {from_proto(message.origin()).value_or(Origin::assumed), message.source()};
}

template <class Message>
void write_provenance(const Provenance& provenance, Message& message) {
  message.set_origin(to_proto(provenance.origin));
  message.set_source(provenance.source);
}

}  // namespace cp::sim
