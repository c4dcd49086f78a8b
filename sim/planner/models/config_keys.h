// What becomes of the keys of a config.json: read, known to change no cost, likely a slip, or neither.
// Internal to sim/planner/models.
#pragma once

#include <string>
#include <string_view>

namespace cp::sim {

// Whether the reader takes something from a field of this name, or refuses a model that has it.
bool is_read_key(std::string_view key);

// Whether a key that is not read changes neither what a step computes nor what it stores: numbers of tokens,
// rates of dropout, versions, notes.
bool is_idle_key(std::string_view key);

// The read key that somebody meant by `key`, which is not one: what other programs call it (n_layers), or one
// slip of the pen away (num_key_value_head). Empty where there is none. A name that merely shares a word with
// a read key (hidden_dropout, hidden_size) is not near.
std::string meant_key(std::string_view key);

}  // namespace cp::sim
