// Finds the known word that somebody most likely meant.
//
// A name that contains the word, or a part of it, is nearer than any name that is merely spelled alike:
// "h200" means hgx-h200, and "llama3" a llama-3 model. The order is as follows. It ignores case and whatever
// separates the parts of a name:
//
//   1. the same letters                     allgather -> all_gather
//   2. a name that contains the word        h200 -> hgx-h200, schedul -> schedule
//   3. a name that the word contains        generics -> generic
//   4. a name that contains parts of it     dgx-h200 -> hgx-h200; the more letters of them the better
//   5. by edit distance (Levenshtein)       verfy -> verify
//
// Among equals the smaller edit distance wins, then the first place. Pieces of less than three letters count
// as contained only if one word begins with the other.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace cp {

// The nearest name. Empty if none is near: none contains anything of the word, and more than a third of the
// letters would have to change.
std::string nearest(std::string_view word, const std::vector<std::string>& known);

// The nearest name, however far it is. `names` must not be empty.
std::string_view nearest_name(std::string_view word, const std::vector<std::string_view>& names);

}  // namespace cp
