// What the processes that judge cases tell the one that started them: messages on a pipe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "sim/fuzz/judge.h"

namespace cp::sim {

enum class MessageKind : std::uint8_t {
  judged,     // what became of the case of that number
  no_case,    // it is none: why
  new_cells,  // the case of that number is the first in some cell of the table, as far as the sender knows
};

struct JudgeMessage {
  MessageKind kind = MessageKind::judged;
  std::uint64_t number = 0;
  Judgement judgement = {};
  std::string text = {};
};

// Blocks until all is written. Nothing happens where nobody reads any more.
void write_message(int pipe, const JudgeMessage& message);
// Takes the first whole message off what was read; nothing where there is none yet.
std::optional<JudgeMessage> take_message(std::string& bytes);

}  // namespace cp::sim
