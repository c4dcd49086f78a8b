// The files of this folder, compiled into the library, so that nothing is looked up when a program runs. They
// are in the order of their names. The texts live as long as the program.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cp::sim {

struct EmbeddedText {
  std::string_view name;  // of the file, without its extension
  std::string_view text;
};

std::span<const EmbeddedText> embedded_clusters();    // clusters/*.txtpb
std::span<const EmbeddedText> embedded_models();      // models/*.json
std::span<const EmbeddedText> embedded_rates();       // rates/*.txtpb
std::span<const EmbeddedText> embedded_software();    // software/*.txtpb
std::span<const EmbeddedText> embedded_validation();  // validation/*.csv

// docs/*.md, which cprun train reads if it is given none
std::span<const EmbeddedText> embedded_training();

std::vector<std::string> names_of(std::span<const EmbeddedText> texts);

// Returns the text of that name. Throws InvalidInput that lists the names and the nearest one. `kind` says
// what they are ("cluster"). `otherwise` says what else would have done (" or a file that ends in .txtpb")
// and may be empty.
const EmbeddedText& find_embedded(std::span<const EmbeddedText> texts, std::string_view name,
                                  std::string_view kind, std::string_view otherwise = "");

}  // namespace cp::sim
