"""The models that this gateway serves, by name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from billing.prices import PriceCatalog, PriceMissing
from gateway.errors import ModelNotFound
from gateway.served_models.served_model import ModelFolderError, ServedModel, load_served_model
from storage.reported_error import ReportedError


class ModelWithoutPrice(ReportedError):
    """A model cannot be served because it has no price. The message has the command that sets one."""


class UnusableAlias(ReportedError):
    """An alias names no served model, or takes the name of one."""


class ModelRegistry:
    """Served models by name, and by further names (aliases) that stand for one. What a request is billed, limited and
    reported under is always the model's own name."""

    def __init__(self, models: Iterable[ServedModel], aliases: Mapping[str, str] | None = None) -> None:
        """`aliases`: a further name → the name of a served model. Raises ModelFolderError, UnusableAlias."""
        self._models: dict[str, ServedModel] = {}
        for model in models:
            if namesake := self._models.get(model.name):
                raise ModelFolderError(f"two models are named {model.name!r}: {namesake.folder} and {model.folder}")
            self._models[model.name] = model
        self.aliases: Mapping[str, str] = dict(aliases or {})
        for alias, name in self.aliases.items():
            if alias in self._models:
                raise UnusableAlias(f"model_aliases: {alias!r} is a served model itself")
            if name not in self._models:
                raise UnusableAlias(f"model_aliases: {alias} stands for {name!r}, which is not served")

    @classmethod
    def load(cls, folders: Iterable[Path], aliases: Mapping[str, str] | None = None) -> ModelRegistry:
        """Read model folders. Raises ModelFolderError naming the file, UnusableAlias."""
        return cls((load_served_model(folder) for folder in folders), aliases)

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._models.values())

    def find(self, name: str) -> ServedModel | None:
        """The model of this name or alias, if it is served."""
        return self._models.get(self.aliases.get(name, name))

    def get(self, name: str) -> ServedModel:
        """The model of this name or alias, or the one that an adapter of this name changes. Raises ModelNotFound."""
        model = self.find(name) or self.find(name.rpartition(":")[0])
        if model is None:
            raise ModelNotFound(f"The model {name!r} does not exist.", path="$.model")
        return model

    def adapter_name(self, name: str) -> str | None:
        """What stands behind a served model's name or alias, as in `base:name`; None for a served model itself."""
        base, _, adapter = name.rpartition(":")
        return adapter if self.find(name) is None and self.find(base) is not None else None

    async def check_prices(self, prices: PriceCatalog) -> None:
        """Raise ModelWithoutPrice unless each model has a price now."""
        for model in self:
            try:
                await prices.current(model.name)
            except PriceMissing as error:
                raise ModelWithoutPrice(
                    f"the model {model.name!r} has no price; set one: `turnpike prices set {model.name} …`"
                ) from error
