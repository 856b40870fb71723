"""`luwu server` and `luwu switch`: their flags."""

from inspect import signature

from luwu.cli.server import server
from luwu.cli.switch import switch
from luwu.server.settings import ServerSettings
from luwu.switch.settings import SwitchSettings


def test_every_setting_has_a_flag():
    flags = set(signature(server).parameters) - {"config", "url_file"}
    assert flags == {"store" if name == "stores" else name for name in ServerSettings.model_fields}
    assert set(signature(switch).parameters) - {"config"} == set(SwitchSettings.model_fields)
