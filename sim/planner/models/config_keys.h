// Sorts the keys of a config.json: those that are read, those known to change no cost, those that are likely
// a slip, and others. Internal to sim/planner/models.
#pragma once

#include <string>
#include <string_view>

namespace cp::sim {

// Whether the reader takes something from a field of this name, or refuses a model that has it.
bool is_read_key(std::string_view key);

// Whether a key that is not read changes neither what a step computes nor what it stores: numbers of tokens,
// rates of dropout, versions, notes.
bool is_idle_key(std::string_view key);

// Returns the read key that somebody meant by `key`, which is not one itself. It may be what other programs
// call it (n_layers), or one slip of the pen away (num_key_value_head). Returns the empty text if there is
// none. A name that merely shares a word with a read key is not near it (hidden_dropout, hidden_size).
std::string meant_key(std::string_view key);

}  // namespace cp::sim
