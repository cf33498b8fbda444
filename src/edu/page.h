#pragma once

#include <string>
#include <vector>

#include "edu/experiment.h"

namespace segue::edu {

/// One HTML page with everything that was found, its plots drawn as SVG: no script, no network.
struct PageSection {
  std::string title;
  std::vector<std::string> paragraphs;
};
std::string lesson_page(const std::string& title, const std::string& made,
                        const std::vector<PageSection>& sections,
                        const std::vector<Experiment>& experiments);

}  // namespace segue::edu
