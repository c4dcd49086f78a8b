// Between the plain data of the rendezvous and its messages.
#pragma once

#include <string>
#include <string_view>

#include "runtime/errors.h"
#include "runtime/rendezvous/status.h"
#include "traces/rendezvous.pb.h"

namespace cp::runtime {

using Message = proto::RendezvousMessage;

void to_wire(const Digest& digest, proto::Digest& out);
void to_wire(const Progress& progress, Message::Progress& out);
void to_wire(const Activity& activity, Message::Activity& out);
void to_wire(const Failure& failure, Message::Failure& out);
void to_wire(const RankStatus& status, Message::Status& out);

Digest from_wire(const proto::Digest& in);
Progress from_wire(const Message::Progress& in);
Activity from_wire(const Message::Activity& in);
Failure from_wire(const Message::Failure& in);
RankStatus from_wire(const Message::Status& in);

// Text of a peer, fit to be shown: without control characters, and not endless.
std::string printable(std::string_view text);

// The exit code that a peer sent; `otherwise` for numbers that are none.
ExitCode exit_code(int number, ExitCode otherwise);

// Throws the exception type of the code.
[[noreturn]] void throw_error(ExitCode code, const std::string& message);

}  // namespace cp::runtime
