"""Which tables there are, and what of them is used.

They are read from installed packages; nothing of them is in oflax. The packages
are free software; of the data, scikit-learn's, vega_datasets' and mlxtend's are
those of UCI, StatLib and public offices, the penguins' are CC0, and statsmodels
and ISLP say of each what its terms are. The authors of star98 and fair keep
their rights: those two may be loaded, not copied.

The list was chosen before any model was run on it: real, of a hundred rows at
least, and with a numeric target that is neither a column's copy nor a sum of
columns. Identifiers, and columns computed from others, are left out.
"""

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses

import numpy as np

from oflax.studies.tables_files import Columns


@dataclasses.dataclass(frozen=True)
class Source:
  """One table.

  Attributes:
    package: The module that has it.
    path: The file in it, or scikit-learn's loader.
    target: What is predicted: a column, or what `compute` makes.
    compute: The target from the columns; None: the column.
    drop: Columns that are no features.
    keep: Pattern of those that are.
    delimiter: Of the file.
    header: Of a file without.
  """

  package: str
  path: str
  target: str
  compute: Callable[[Columns], np.ndarray] | None = None
  drop: Sequence[str] = ()
  keep: str = ".*"
  delimiter: str = ","
  header: Sequence[str] = ()


SOURCES = {
  "diabetes": Source("sklearn", "load_diabetes", "target"),
  "wine": Source("sklearn", "load_wine", "alcohol", drop=("target",)),
  "breast-cancer": Source(
    "sklearn",
    "load_breast_cancer",
    "log (worst area)",
    lambda c: np.log(c["worst area"]),
    keep="mean .*",
  ),
  "iris": Source("sklearn", "load_iris", "petal width (cm)", drop=("target",)),
  "penguins": Source("palmerpenguins", "data/penguins.csv", "body_mass_g"),
  "cars": Source(
    "vega_datasets", "_data/cars.json", "Acceleration", drop=("Name",)
  ),
  "barley": Source("vega_datasets", "_data/barley.json", "yield"),
  "seattle-weather": Source(
    "vega_datasets", "_data/seattle-weather.csv", "temp_max"
  ),
  "sf-temps": Source("vega_datasets", "_data/sf-temps.csv", "temp"),
  "auto-mpg": Source(
    "mlxtend",
    "data/data/autompg.csv.gz",
    "mpg",
    drop=("name",),
    header=(
      "cylinders",
      "displacement",
      "horsepower",
      "weight",
      "acceleration",
      "model year",
      "origin",
      "name",
      "mpg",
    ),
  ),
  "grunfeld": Source(
    "statsmodels",
    "datasets/grunfeld/grunfeld.csv",
    "log (invest)",
    lambda c: np.log(c["invest"]),
    drop=("invest",),
  ),
  "randhie": Source(
    "statsmodels",
    "datasets/randhie/randhie.csv",
    "log (1 + mdvis)",
    lambda c: np.log1p(c["mdvis"]),
    drop=("mdvis",),
  ),
  "engel": Source("statsmodels", "datasets/engel/engel.csv", "foodexp"),
  "fair": Source(
    "statsmodels",
    "datasets/fair/fair.csv",
    "log (0.1 + affairs)",
    lambda c: np.log(0.1 + c["affairs"]),
    drop=("affairs",),
  ),
  # Of the pupils tested, MATHTOT, the share above the median. The columns with
  # an underscore are products of others.
  "star98": Source(
    "statsmodels",
    "datasets/star98/star98.csv",
    "PR50M / MATHTOT",
    lambda c: c["PR50M"] / c["MATHTOT"],
    drop=("PR50M", "MATHTOT"),
    keep="[^_]*",
  ),
  # The real interest rate is computed from two other columns.
  "macrodata": Source(
    "statsmodels",
    "datasets/macrodata/macrodata.csv",
    "unemp",
    drop=("realint",),
  ),
  "anes96": Source(
    "statsmodels", "datasets/anes96/anes96.csv", "income", delimiter="\t"
  ),
  # The generalised cost is computed from the travel time.
  "modechoice": Source(
    "statsmodels",
    "datasets/modechoice/modechoice.csv",
    "invt",
    drop=("individual", "gc"),
    delimiter=";",
  ),
  # Twenty years ahead, of countries and a few groups of them.
  "fertility": Source(
    "statsmodels", "datasets/fertility/fertility.csv", "2010", keep="19[6-9]0"
  ),
  "hitters": Source(
    "ISLP",
    "data/Hitters.csv",
    "log (Salary)",
    lambda c: np.log(c["Salary"]),
    drop=("Salary",),
  ),
  "college": Source("ISLP", "data/College.csv", "Outstate"),
  # The bikers are the casual and the registered ones; the day says the month.
  "bikeshare": Source(
    "ISLP",
    "data/Bikeshare.csv",
    "log (bikers)",
    lambda c: np.log(c["bikers"]),
    drop=("bikers", "casual", "registered", "mnth"),
  ),
  "wage": Source("ISLP", "data/Wage.csv", "logwage", drop=("wage",)),
}
