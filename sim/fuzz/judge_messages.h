// The messages, on a pipe, that processes which judge cases send to the process that started them. Both are
// the same program on the same machine, so the bytes are those of its memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "sim/fuzz/judge.h"

namespace cp::sim {

enum class MessageKind : std::uint8_t {
  judged,     // says what became of the case with this number
  no_case,    // the case with this number is none; the text says why
  new_cells,  // the case is the first in some cell of the table of features, as far as the sender knows
};

struct JudgeMessage {
  MessageKind kind = MessageKind::judged;
  std::uint64_t number = 0;
  Judgement judgement = {};
  std::string text = {};
};

// Blocks until all of the message is written. Does nothing more once nobody reads the pipe.
void write_message(int pipe, const JudgeMessage& message);
// Takes the first whole message off `bytes`, which is what was read so far. Returns nothing if there is no
// whole one yet.
std::optional<JudgeMessage> take_message(std::string& bytes);

}  // namespace cp::sim
