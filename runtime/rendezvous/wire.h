// Between the plain data of the rendezvous and its messages.
#pragma once

#include <string>
#include <string_view>

#include "runtime/errors.h"
#include "runtime/rendezvous/rendezvous.pb.h"
#include "runtime/rendezvous/status.h"

namespace cp::runtime {

using Message = proto::RendezvousMessage;

proto::ErrorKind to_wire(ErrorKind kind);
void to_wire(const Digest& digest, proto::Digest& out);
void to_wire(const Progress& progress, Message::Progress& out);
void to_wire(const Activity& activity, Message::Activity& out);
void to_wire(const Failure& failure, Message::Failure& out);
void to_wire(const RankStatus& status, Message::Status& out);

// `otherwise`: for NO_ERROR, and for numbers that are no kind here.
ErrorKind from_wire(proto::ErrorKind in, ErrorKind otherwise);
Digest from_wire(const proto::Digest& in);
Progress from_wire(const Message::Progress& in);
Activity from_wire(const Message::Activity& in);
Failure from_wire(const Message::Failure& in);
RankStatus from_wire(const Message::Status& in);

// Text of a peer, fit to be shown: without control characters, and not endless.
std::string printable(std::string_view text);

}  // namespace cp::runtime
